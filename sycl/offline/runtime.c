// What a translated kernel (translate.py) calls, and the launch of a range: work-items of a group are
// fibers, switched at barriers, in ascending or descending order. A fault of the kernel's ends the launch
// with a message instead of the process.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { kMaxItems = 64, kStack = 4 << 20 };

void octet_entry(void * arguments);

typedef struct {
    ucontext_t context;
    int64_t global[2], local[2];
    int done;
    void * stack;
} Item;

static Item items[kMaxItems];
static Item * current;
static ucontext_t scheduler;
static uint8_t *local_memory, *local_pages;
static int64_t local_bytes, local_mapped;
static void * arguments_;
static char message[256];
static sigjmp_buf escape;
enum { kPage = 4096 };

static void fail(const char * what, uint64_t where) {
    snprintf(message, sizeof message, "%s 0x%llx in work-item (%lld, %lld)", what, (unsigned long long)where,
             (long long)current->global[0], (long long)current->global[1]);
    siglongjmp(escape, 1);
}

// SYCL's dimension 1 of 2 is SPIR-V's 0.
int64_t rt_global_id(int i) { return i < 2 ? current->global[1 - i] : 0; }
int64_t rt_local_id(int i) { return i < 2 ? current->local[1 - i] : 0; }

int64_t rt_local(int64_t offset) {
    if (offset < 0 || offset >= local_bytes) fail("local memory is left at", (uint64_t)offset);
    return (int64_t)(local_memory + offset);
}

void rt_aligned(int64_t address, int64_t size) {
    if (address & (size - 1)) fail("a gather is not aligned at", (uint64_t)address);
}

void rt_inside(int64_t offset, int64_t last) {
    if (offset < 0 || offset > last) fail("registers are left at byte", (uint64_t)offset);
}

void rt_barrier(void) { swapcontext(&current->context, &scheduler); }

void rt_dpas_i8(int32_t * c, const int8_t * b, const int8_t * a) {
    for (int r = 0; r < 8; ++r) {
        for (int d = 0; d < 8; ++d) {
            for (int n = 0; n < 16; ++n) {
                for (int j = 0; j < 4; ++j) c[r * 16 + n] += a[r * 32 + d * 4 + j] * b[d * 64 + n * 4 + j];
            }
        }
    }
}

// The hardware's order of sums is not published; this one is as good as any.
void rt_dpas_half(float * c, const _Float16 * b, const _Float16 * a) {
    for (int r = 0; r < 8; ++r) {
        for (int d = 0; d < 8; ++d) {
            for (int n = 0; n < 16; ++n) {
                for (int j = 0; j < 2; ++j) {
                    c[r * 16 + n] += (float)a[r * 16 + d * 2 + j] * (float)b[d * 32 + n * 2 + j];
                }
            }
        }
    }
}

static void run_item(void) {
    octet_entry(arguments_);
    current->done = 1;
    swapcontext(&current->context, &scheduler);
}

static void on_fault(int number, siginfo_t * info, void * context) {
    (void)number;
    (void)context;
    fail("memory that is not the kernel's is touched at", (uint64_t)info->si_addr);
}

static void run_group(int64_t g0, int64_t g1, int count, int descending) {
    if (local_bytes) memset(local_memory, 0xa5, (size_t)local_bytes);
    for (int i = 0; i < count; ++i) {
        Item * item = &items[i];
        item->global[0] = g0;
        item->global[1] = g1 * count + i;
        item->local[0] = 0;
        item->local[1] = i;
        item->done = 0;
        if (!item->stack) item->stack = malloc(kStack);
        getcontext(&item->context);
        item->context.uc_stack.ss_sp = item->stack;
        item->context.uc_stack.ss_size = kStack;
        item->context.uc_link = NULL;
        makecontext(&item->context, run_item, 0);
    }
    for (int done = 0; done < count;) {
        done = 0;
        for (int i = 0; i < count; ++i) {
            current = &items[descending ? count - 1 - i : i];
            swapcontext(&scheduler, &current->context);
            done += current->done;
        }
        if (done && done < count) fail("not all work-items reach a barrier; arrived:", (uint64_t)(count - done));
    }
}

// Runs the range {g0, g1} in groups of {1, l1}. Returns NULL, or what went wrong.
const char * octet_launch(void * arguments, int64_t g0, int64_t g1, int l1, int64_t slm, int descending) {
    message[0] = 0;
    if (l1 > kMaxItems || g1 % l1) return "the range does not suit";
    arguments_ = arguments;
    local_bytes = slm;
    local_mapped = (slm + kPage - 1) / kPage * kPage;
    // Local memory ends at a page that cannot be touched.
    local_pages = mmap(NULL, (size_t)local_mapped + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (local_pages == MAP_FAILED) return "no memory";
    if (local_mapped) mprotect(local_pages + kPage, (size_t)local_mapped, PROT_READ | PROT_WRITE);
    local_memory = local_pages + kPage + local_mapped - slm;
    struct sigaction action = {0}, old_segv, old_bus;
    stack_t mine = {.ss_sp = malloc(65536), .ss_size = 65536}, old_stack;
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaltstack(&mine, &old_stack);
    sigaction(SIGSEGV, &action, &old_segv);
    sigaction(SIGBUS, &action, &old_bus);
    if (!sigsetjmp(escape, 1)) {
        for (int64_t i = 0; i < g0; ++i) {
            for (int64_t j = 0; j < g1 / l1; ++j) run_group(i, j, l1, descending);
        }
    }
    sigaction(SIGSEGV, &old_segv, NULL);
    sigaction(SIGBUS, &old_bus, NULL);
    sigaltstack(&old_stack, NULL);
    free(mine.ss_sp);
    munmap(local_pages, (size_t)local_mapped + 2 * kPage);
    return message[0] ? message : NULL;
}
