#include "gpu.h"

#include <dlfcn.h>

#include <cstring>
#include <filesystem>
#include <sstream>

#include "files/files.h"

namespace octet::gpu {

namespace fs = std::filesystem;

namespace {

const octet_gpu_driver * opened = nullptr;

std::string failure(const std::string & what) {
    const char * why = opened->error();
    return what + ": " + (*why ? why : "no reason given");
}

[[noreturn]] void fail(const std::string & what) { throw Error(failure(what)); }

Need need_of(const std::string & name, const std::string & options) {
    if (name == "sum") return Need::both;
    const bool half = name == "dequantize" || name == "product_half" || options.find("HALF=1") != std::string::npos;
    return half ? Need::half : Need::int8;
}

std::string megabytes(size_t bytes) { return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB"; }

// What a cached program is kept under, and what it has to begin with.
constexpr char kHead[] = "octet gpu program 1\n";
// Sources have some 10 KB, programs some 100 KB.
constexpr size_t kLargestSource = 1 << 20, kLargestProgram = 64 << 20;

}  // namespace

std::string open_driver(const std::string & path) {
    if (opened) return "";
    void * library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) return dlerror();
    auto table = reinterpret_cast<const octet_gpu_driver * (*) ()>(dlsym(library, "octet_gpu_driver_table"));
    if (!table || table()->version != OCTET_GPU_DRIVER_VERSION) return path + " is of another version";
    opened = table();
    return "";
}

const octet_gpu_driver * driver() { return opened; }

std::vector<octet_gpu_info> list_devices(bool cpu) {
    const int count = opened->count(cpu);
    if (count < 0) fail("the SYCL runtime");
    std::vector<octet_gpu_info> list(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) {
        if (!opened->info(cpu, i, &list[size_t(i)])) fail("device " + std::to_string(i));
    }
    return list;
}

Memory::~Memory() {
    if (data_) opened->release(queue_, data_);
}

void * Room::bytes(Gpu & gpu, size_t size) {
    if (size > memory_.size()) {
        memory_ = Memory();  // first, so that both need not fit
        memory_ = gpu.device_memory(size);
    }
    return memory_.data();
}

Gpu::Gpu(const Setup & setup) : setup_(setup) {
    const std::vector<octet_gpu_info> all = list_devices(setup.cpu);
    if (size_t(setup.index) >= all.size()) throw Error("device " + std::to_string(setup.index) + " has gone");
    info_ = all[size_t(setup.index)];
    read_sources();
    queue_ = opened->open(setup.cpu, setup.index);
    if (!queue_) fail(info_.name);
}

Gpu::~Gpu() {
    for (auto & [key, program] : programs_) opened->free_program(program);
    opened->close(queue_);
}

uint64_t Gpu::free_memory() const {
    const uint64_t free = opened->free_memory(queue_);
    return free ? free : info_.memory;
}

Memory Gpu::device_memory(size_t bytes) {
    bytes = bytes ? bytes : 1;
    void * data = opened->allocate(queue_, bytes, 0);
    if (!data) throw MemoryError(failure("allocating " + megabytes(bytes) + " of device memory"));
    return {queue_, data, bytes};
}

Memory Gpu::host_memory(size_t bytes) {
    bytes = bytes ? bytes : 1;
    void * data = opened->allocate(queue_, bytes, 1);
    if (!data) throw MemoryError(failure("allocating " + megabytes(bytes) + " of host memory"));
    return {queue_, data, bytes};
}

void Gpu::copy(void * to, const void * from, size_t bytes) {
    if (bytes && !opened->copy(queue_, to, from, bytes)) fail("copying " + megabytes(bytes));
}

void Gpu::launch_with(octet_gpu_kernel * kernel, Range global, Range local, const octet_gpu_argument * arguments,
                      int count) {
    const size_t all[2] = {global.slow, global.fast}, group[2] = {local.slow, local.fast};
    if (!opened->launch(queue_, kernel, all, group, arguments, count)) fail("launching a kernel");
}

void Gpu::wait() {
    if (!opened->wait(queue_)) fail("waiting for the device");
}

void Gpu::read_sources() {
    // Kernels for central processors share the interface and the plain kernels with the others.
    std::vector<fs::path> folders = {fs::path(setup_.sources) / "plain"};
    if (!setup_.cpu) folders.push_back(fs::path(setup_.sources) / "kernels");
    std::vector<fs::path> files = {fs::path(setup_.sources) / "kernels" / "launch.h"};
    std::error_code failed;
    for (const fs::path & folder : folders) {
        for (const fs::directory_entry & e : fs::directory_iterator(folder, failed)) files.push_back(e.path());
    }
    for (const fs::path & file : files) {
        const std::string extension = file.extension().string();
        if (extension != ".h" && extension != ".cpp") continue;
        std::string text;
        if (!read_file(file.string(), kLargestSource, &text))
            throw Error(file.string() + " cannot be read: reinstall llama-octet");
        // A kernel of the later folder takes the place of a plain one.
        (extension == ".h" ? includes_ : sources_)[file.filename().string()] = text;
    }
    std::string all;
    for (const auto * map : {&includes_, &sources_}) {
        for (const auto & [name, text] : *map) all += name + "\n" + text + "\n";
    }
    source_hash_ = hash_of(all);
}

octet_gpu_kernel * Gpu::kernel(const std::string & name, const std::string & options) {
    octet_gpu_kernel * k = opened->kernel(program(name, options), ("octet_" + name).c_str());
    if (!k) throw BuildError(failure("kernel octet_" + name), need_of(name, options));
    return k;
}

octet_gpu_program * Gpu::program(const std::string & name, const std::string & options) {
    const std::string key = name + " " + options;
    auto known = programs_.find(key);
    if (known != programs_.end()) return known->second;

    const std::string head = std::string(kHead) + info_.name + "\n" + info_.architecture + "\n" + info_.driver + "\n" +
                             source_hash_ + "\n" + std::to_string(setup_.registers) + " " + key + "\n";
    const std::string path = setup_.cache.empty() ? "" : setup_.cache + "/gpu-program-" + hash_of(head) + ".bin";
    std::string kept;
    octet_gpu_program * p = nullptr;
    // The file: head, hash of the program, program.
    const size_t hash_size = hash_of("").size();
    if (!path.empty() && read_file(path, kLargestProgram, &kept) && kept.size() > head.size() + hash_size &&
        kept.compare(0, head.size(), head) == 0) {
        const std::string bytes = kept.substr(head.size() + hash_size);
        if (kept.compare(head.size(), hash_size, hash_of(bytes)) == 0) {
            p = opened->load(queue_, bytes.data(), bytes.size());
        }
        // Whether it holds the kernel is only known when it is asked for.
        if (p && !opened->kernel(p, ("octet_" + name).c_str())) {
            opened->free_program(p);
            p = nullptr;
        }
        if (p) ++cached_;
    }
    if (!p) {
        p = build(name, options);
        size_t size = 0;
        const void * bytes = path.empty() ? nullptr : opened->contents(p, &size);
        if (bytes) {
            const std::string text(static_cast<const char *>(bytes), size);
            write_file(path, head + hash_of(text) + text);
        }
    }
    programs_[key] = p;
    return p;
}

octet_gpu_program * Gpu::build(const std::string & name, const std::string & options) {
    auto source = sources_.find(name + ".cpp");
    if (source == sources_.end()) {
        throw BuildError(name + ".cpp is missing: reinstall llama-octet", need_of(name, options));
    }
    std::vector<const char *> names, texts, list;
    for (const auto & [file, text] : includes_) {
        names.push_back(file.c_str());
        texts.push_back(text.c_str());
    }
    // Contraction would change the bits of the arithmetic.
    std::vector<std::string> words = {"-ffp-contract=off", "-DOCTET_GRF=" + std::to_string(setup_.registers)};
    std::istringstream in(options);
    for (std::string word; in >> word;) words.push_back(word);
    for (const std::string & word : words) list.push_back(word.c_str());
    const octet_gpu_source s = {source->second.c_str(), names.data(), texts.data(),
                                int32_t(names.size()),  list.data(),  int32_t(list.size())};
    octet_gpu_program * p = opened->build(queue_, &s);
    if (!p) throw BuildError(failure("compiling " + name + ".cpp " + options), need_of(name, options));
    ++built_;
    return p;
}

}  // namespace octet::gpu
