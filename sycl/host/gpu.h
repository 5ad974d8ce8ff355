// A graphics processor: its memory, its programs and their launches. Everything that can fail throws
// Error; what to do about it is decided where chains are run (chain.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "driver.h"

namespace octet::gpu {

// One line: what failed, and how.
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// There was no memory for something.
struct MemoryError : Error {
    using Error::Error;
};

// What a program is needed for.
enum class Need { int8, half, both };

// A program cannot be had; the device itself is well.
struct BuildError : Error {
    BuildError(const std::string & what, Need need) : Error(what), need(need) {}
    Need need;
};

// Opens the library that driver.cpp was compiled to; for good. "" or one line.
std::string open_driver(const std::string & path);

// nullptr before.
const octet_gpu_driver * driver();

// What the driver sees, of one kind. Throws.
std::vector<octet_gpu_info> list_devices(bool cpu);

struct Setup {
    bool cpu = false;     // plain kernels on a central processor
    int index = 0;        // in list_devices()
    std::string sources;  // folder of this project's sycl/
    std::string cache;    // folder for compiled programs; "": none
    int registers = 256;  // of a thread: 128 or 256
};

// Memory of a device, or of the host for it; empty after a move.
class Memory {
  public:
    Memory() = default;
    Memory(octet_gpu_queue * queue, void * data, size_t size) : queue_(queue), data_(data), size_(size) {}
    Memory(Memory && other) noexcept { *this = std::move(other); }
    Memory & operator=(Memory && other) noexcept {
        std::swap(queue_, other.queue_);
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    ~Memory();

    uint8_t * data() const { return static_cast<uint8_t *>(data_); }
    size_t size() const { return size_; }

  private:
    octet_gpu_queue * queue_ = nullptr;
    void * data_ = nullptr;
    size_t size_ = 0;
};

// Device memory that only grows.
class Gpu;
class Room {
  public:
    template <typename T>
    T * get(Gpu & gpu, size_t count) {
        return static_cast<T *>(bytes(gpu, count * sizeof(T)));
    }

  private:
    void * bytes(Gpu & gpu, size_t size);
    Memory memory_;
};

struct Range {
    size_t slow, fast;
};

class Gpu {
  public:
    explicit Gpu(const Setup & setup);
    ~Gpu();
    Gpu(const Gpu &) = delete;
    Gpu & operator=(const Gpu &) = delete;

    const octet_gpu_info & info() const { return info_; }
    const Setup & setup() const { return setup_; }

    // Free bytes, as the driver tells, or all of them.
    uint64_t free_memory() const;

    Memory device_memory(size_t bytes);
    Memory host_memory(size_t bytes);

    // Enqueued, in order.
    void copy(void * to, const void * from, size_t bytes);
    template <typename... A>
    void launch(octet_gpu_kernel * kernel, Range global, Range local, const A &... a) {
        const octet_gpu_argument arguments[] = {argument(a)...};
        launch_with(kernel, global, local, arguments, int(sizeof...(A)));
    }
    void wait();

    // The kernel octet_<name> of <name>.cpp, built with these options: from memory, from the cache, or anew.
    octet_gpu_kernel * kernel(const std::string & name, const std::string & options);

    // Hash of all device code: part of the key of whatever is measured with it.
    const std::string & source_hash() const { return source_hash_; }

    // Programs built so far, and of these read from the cache.
    int built() const { return built_; }
    int cached() const { return cached_; }

    // One user at a time; also guards everything above.
    std::mutex & mutex() { return mutex_; }

  private:
    template <typename T>
    static octet_gpu_argument argument(T * const & pointer) {
        return {pointer, 0};
    }
    template <typename T>
    static octet_gpu_argument argument(const T & value) {
        return {&value, sizeof value};
    }
    void launch_with(octet_gpu_kernel *, Range global, Range local, const octet_gpu_argument *, int count);
    void read_sources();
    octet_gpu_program * program(const std::string & name, const std::string & options);
    octet_gpu_program * build(const std::string & name, const std::string & options);

    Setup setup_;
    octet_gpu_info info_{};
    octet_gpu_queue * queue_ = nullptr;
    std::map<std::string, std::string> includes_, sources_;  // by file name
    std::string source_hash_;
    std::map<std::string, octet_gpu_program *> programs_;
    std::atomic<int> built_{0}, cached_{0};
    std::mutex mutex_;
};

}  // namespace octet::gpu
