// Which instruction sets this machine has.
#include "octet/kernels.h"
#include "tables.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace octet {

namespace {

#if defined(__x86_64__)
struct Cpu {
    bool avx2 = false, avxvnni = false, avx512vnni = false, amx = false;

    Cpu() {
        unsigned a, b, c, d;
        if (!__get_cpuid(1, &a, &b, &c, &d)) return;
        const unsigned osxsave = 1u << 27, avx = 1u << 28, fma = 1u << 12, f16c = 1u << 29;
        const unsigned needed = osxsave | avx | fma | f16c;
        if ((c & needed) != needed) return;

        // XCR0 says which registers the operating system saves: bits 1, 2 for SSE and AVX,
        // 5, 6, 7 for the AVX-512 masks and registers.
        unsigned lo, hi;
        __asm__("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
        if ((lo & 0x06) != 0x06) return;
        if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
        avx2 = b & 1u << 5;
        const unsigned avx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
        avx512vnni = avx2 && (lo & 0xe0) == 0xe0 && (b & avx512) == avx512 && (c & 1u << 11);
        // XCR0 17, 18: tile configuration and tiles; EDX 24, 25: AMX-TILE, AMX-INT8. Linux gives a process
        // the tiles only when asked: ARCH_REQ_XCOMP_PERM for state component 18.
        const bool tiles = (lo & 0x60000) == 0x60000 && (d & 3u << 24) == 3u << 24;
        constexpr long kRequestPermission = 0x1023, kTileData = 18;
        amx = avx512vnni && tiles && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
        avxvnni = avx2 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
    }
};
#elif defined(__aarch64__)
struct Cpu {
    bool neon = getauxval(AT_HWCAP) & 1ul << 20;           // HWCAP_ASIMDDP: dotprod
    bool i8mm = neon && getauxval(AT_HWCAP2) & 1ul << 13;  // HWCAP2_I8MM
};
#else
struct Cpu {};
#endif

}  // namespace

const char * isa_name(Isa isa) {
    switch (isa) {
        case Isa::scalar: return "scalar";
        case Isa::avx2: return "avx2";
        case Isa::avxvnni: return "avxvnni";
        case Isa::avx512vnni: return "avx512vnni";
        case Isa::amx: return "amx";
        case Isa::neon: return "neon";
        case Isa::i8mm: return "i8mm";
    }
    return "?";
}

const Kernels * kernels_of(Isa isa) {
    static const Cpu cpu;
    switch (isa) {
        case Isa::scalar: return &kScalarKernels;
#if defined(__x86_64__)
        case Isa::avx2: return cpu.avx2 ? &kAvx2Kernels : nullptr;
        case Isa::avxvnni: return cpu.avxvnni ? &kAvxVnniKernels : nullptr;
        case Isa::avx512vnni: return cpu.avx512vnni ? &kAvx512VnniKernels : nullptr;
        case Isa::amx: return cpu.amx ? &kAmxKernels : nullptr;
#elif defined(__aarch64__)
        case Isa::neon: return cpu.neon ? &kNeonKernels : nullptr;
        case Isa::i8mm: return cpu.i8mm ? &kI8mmKernels : nullptr;
#endif
        default: return nullptr;
    }
}

Isa best_isa() {
    Isa best = Isa::scalar;
    for (Isa isa : kIsas) {
        if (kernels_of(isa)) best = isa;  // kIsas ascends
    }
    return best;
}

}  // namespace octet
