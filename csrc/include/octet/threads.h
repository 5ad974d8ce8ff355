// Running a function on every thread of the process's OpenMP team.
#pragma once

#include <atomic>
#include <cstdint>

namespace octet {

// What a thread of a team knows.
struct Thread {
    int index, count;

    // Waits for all threads of the team.
    void barrier() const;

    // This thread's part of n items: [first, last).
    void share(int64_t n, int64_t * first, int64_t * last) const {
        *first = n * index / count;
        *last = n * (index + 1) / count;
    }
};

// Takes the threads of the OpenMP runtime that `library`, a handle of dlopen(), or a library it depends on offers; else
// those of the first one that is installed. To be called before the first use of threads, which otherwise decides, if
// the process computes with OpenMP itself: the threads of two runtimes would wait for work on the same cores. False
// if there is no runtime: the caller will work alone.
bool use_openmp_of(void * library);

// Calls f(thread) on n_threads threads at once (on the caller alone if n_threads <= 1 or if it is
// itself in a team). Floating point is put into its default mode on each of them for that time:
// round to nearest, subnormals kept.
void run_on_threads(int n_threads, void (*f)(void * data, const Thread & thread), void * data);

template <typename F>
void on_threads(int n_threads, F & f) {
    run_on_threads(n_threads, [](void * data, const Thread & t) { (*static_cast<F *>(data))(t); }, &f);
}

// Hands out the numbers 0 .. n-1 to whichever thread asks next.
class Counter {
  public:
    void reset() { next_.store(0, std::memory_order_relaxed); }
    int64_t take() { return next_.fetch_add(1, std::memory_order_relaxed); }

  private:
    alignas(64) std::atomic<int64_t> next_{0};
};

}  // namespace octet
