// The OpenMP runtime, found when the program runs: the one that the process computes with already.
#pragma once

namespace octet {

// The functions of GCC's OpenMP runtime that are used here; clang's and Intel's offer the same.
struct OpenMp {
    void (*parallel)(void (*f)(void *), void * data, unsigned n_threads, unsigned flags);
    void (*barrier)();
    int (*thread_num)();
    int (*num_threads)();
    int (*in_parallel)();
};

// The one that use_openmp_of() chose, or would choose without a library.
const OpenMp * openmp();

}  // namespace octet
