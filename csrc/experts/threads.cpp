// The team is OpenMP's, so that a process that already computes with OpenMP keeps one set of threads.
#include "octet/threads.h"

#include <pthread.h>

#include "openmp.h"
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace octet {

namespace {

// A library built with -ffast-math may have left flush-to-zero on in this thread; fp16 scales of
// ordinary weights are often subnormal products away from it.
class DefaultFloat {
  public:
#if defined(__SSE__)
    DefaultFloat() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
    ~DefaultFloat() { _mm_setcsr(saved_); }

  private:
    unsigned saved_;
#elif defined(__aarch64__)
    DefaultFloat() {
        __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
        __asm__ volatile("msr fpcr, %0" : : "r"(0ul));
    }
    ~DefaultFloat() { __asm__ volatile("msr fpcr, %0" : : "r"(saved_)); }

  private:
    unsigned long saved_;
#endif
};

// A forked child has the team's records but none of its threads, and would wait for them for ever: it
// works alone.
bool forked = false;

bool in_forked_child() {
    static const int registered = pthread_atfork(nullptr, nullptr, [] { forked = true; });
    return registered == 0 && forked;
}

struct Call {
    void (*f)(void * data, const Thread & thread);
    void * data;
};

}  // namespace

void Thread::barrier() const {
    if (count > 1) openmp()->barrier();
}

void run_on_threads(int n_threads, void (*f)(void *, const Thread &), void * data) {
    const OpenMp * const team = n_threads > 1 && !in_forked_child() ? openmp() : nullptr;
    if (team && !team->in_parallel()) {
        Call call = {f, data};
        auto on_each = [](void * p) {
            const Call & c = *static_cast<Call *>(p);
            DefaultFloat mode;
            c.f(c.data, Thread{openmp()->thread_num(), openmp()->num_threads()});
        };
        return team->parallel(on_each, &call, unsigned(n_threads), 0);
    }
    DefaultFloat mode;
    f(data, Thread{0, 1});
}

}  // namespace octet
