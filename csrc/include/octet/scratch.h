// Memory that only grows: after the first calls of a given size nothing is allocated.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

#include "octet/pages.h"

namespace octet {

class Scratch {
  public:
    Scratch() = default;
    Scratch(const Scratch &) = delete;
    Scratch & operator=(const Scratch &) = delete;
    ~Scratch() { std::free(data_); }

    // At least `count` elements of T, 64-byte aligned; what they held before is lost if it grows.
    // Throws std::bad_alloc.
    template <typename T>
    T * get(size_t count) {
        size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
        if (bytes > size_) {
            std::free(data_);
            size_ = 0;
            data_ = allocate(bytes);
            if (!data_) throw std::bad_alloc();
            size_ = bytes;
        }
        return static_cast<T *>(data_);
    }

    size_t size() const { return size_; }

  private:
    void * data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace octet
