// Tests of the kernels. kernels_test [--quick] [--require NAME]...
//
// --quick: fewer sizes, for an emulated machine.
// --require NAME: fail if this instruction set is not available here.
#include <cstdlib>

#include "check.h"
#include "data.h"
#include "tests.h"

namespace octet_test {

Totals & totals() {
    static Totals t;
    return t;
}

static bool quick_;
bool quick() { return quick_; }

static void run(const char * name, void (*test)()) {
    const Totals before = totals();
    test();
    std::printf("%-12s %8ld passed, %ld failed\n", name, totals().passed - before.passed,
                totals().failed - before.failed);
    std::fflush(stdout);
}

}  // namespace octet_test

int main(int argc, char ** argv) {
    using namespace octet_test;
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--quick") == 0) {
            quick_ = true;
        } else if (std::strcmp(argv[i], "--require") == 0 && i + 1 < argc) {
            const char * wanted = argv[++i];
            bool found = false;
            for (Isa isa : kIsas) found |= std::strcmp(isa_name(isa), wanted) == 0 && kernels_of(isa);
            CHECK(found, "%s is required and not available here", wanted);
        } else {
            std::printf("usage: kernels_test [--quick] [--require NAME]...\n");
            return 2;
        }
    }
    for (Isa isa : kIsas) {
        std::printf("%s: %s\n", isa_name(isa), kernels_of(isa) ? "tested" : "skipped, not in this build or machine");
    }
    run("elementwise", test_elementwise);
    run("product", test_product);
    run("multiply", test_multiply);
    run("chain", test_chain);
    run("threads", test_threads);
    run("c_api", test_c_api);
    std::printf("%ld passed, %ld failed\n", totals().passed, totals().failed);
    return totals().failed ? 1 : 0;
}
