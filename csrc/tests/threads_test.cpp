// The team: as many threads as asked for, each with its own number, and none within another team.
#include "octet/threads.h"

#include <atomic>
#include <initializer_list>

#include "check.h"
#include "tests.h"

namespace octet_test {

using namespace octet;

void test_threads() {
    for (int n : {1, 2, 3}) {
        std::atomic<int> seen[3] = {}, within{0}, before{0}, early{0}, miscounted{0};
        auto inner = [&](const Thread &) { ++within; };
        auto outer = [&](const Thread & t) {
            miscounted += t.count != n;
            ++seen[t.index];
            on_threads(2, inner);
            ++before;
            t.barrier();
            if (before != n) ++early;
        };
        on_threads(n, outer);
        for (int i = 0; i < n; ++i) CHECK(seen[i] == 1, "thread %d of %d ran %d times", i, n, seen[i].load());
        CHECK(miscounted == 0, "%d of %d threads know another number", miscounted.load(), n);
        CHECK(early == 0, "%d of %d threads passed the barrier early", early.load(), n);
        // A single thread is no team, so that it may make one.
        CHECK(within == (n == 1 ? 2 : n), "%d threads within %d", within.load(), n);
    }
    CHECK(use_openmp_of(nullptr), "no OpenMP runtime is installed here");
}

}  // namespace octet_test
