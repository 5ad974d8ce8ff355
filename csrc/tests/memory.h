// Memory that ends (or begins) at a page nobody may touch: reading or writing one byte too far crashes.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace octet_test {

enum class Edge { end, begin };

template <typename T>
class Guarded {
  public:
    // Filled with bytes that make unlikely numbers. With Edge::end the last element touches the guard;
    // the first is aligned as far as count * sizeof(T) is.
    explicit Guarded(size_t count, Edge edge = Edge::end) : count_(count) {
        const size_t page = size_t(sysconf(_SC_PAGESIZE)), bytes = count * sizeof(T);
        const size_t inner = (bytes + page - 1) / page * page;
        size_ = inner + 2 * page;
        void * memory = mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        map_ = static_cast<char *>(memory);
        if (memory == MAP_FAILED || (inner && mprotect(map_ + page, inner, PROT_READ | PROT_WRITE) != 0)) {
            std::perror("mmap");
            std::exit(2);
        }
        std::memset(map_ + page, 0xA5, inner);
        data_ = reinterpret_cast<T *>(map_ + page + (edge == Edge::end ? inner - bytes : 0));
    }
    ~Guarded() { munmap(map_, size_); }
    Guarded(const Guarded &) = delete;
    Guarded & operator=(const Guarded &) = delete;

    T * data() { return data_; }
    const T * data() const { return data_; }
    size_t size() const { return count_; }
    T & operator[](size_t i) { return data_[i]; }
    const T & operator[](size_t i) const { return data_[i]; }

  private:
    char * map_;
    T * data_;
    size_t size_, count_;
};

}  // namespace octet_test
