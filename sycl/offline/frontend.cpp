// Compiles one source file of the kernels at run time: frontend FOLDER FILE [options]. The folder's
// headers are given to the compiler as include files. With SYCL_DUMP_IMAGES=1 the SYCL runtime leaves the
// SPIR-V in the current folder.
#define SYCL_DISABLE_FSYCL_SYCLHPP_WARNING
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <sycl/sycl.hpp>
#include <vector>

namespace syclex = sycl::ext::oneapi::experimental;

static std::string text_of(const std::filesystem::path & path) {
    std::ifstream file(path);
    if (!file) throw std::runtime_error("cannot read " + path.string());
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

int main(int argc, char ** argv) {
    if (argc < 3) return std::cerr << "usage: frontend FOLDER FILE [options]\n", 2;
    const std::filesystem::path folder = argv[1];
    std::string log;
    try {
        sycl::queue queue{sycl::cpu_selector_v};
        syclex::include_files headers;
        for (const auto & entry : std::filesystem::directory_iterator(folder)) {
            if (entry.path().extension() == ".h") headers.add(entry.path().filename(), text_of(entry.path()));
        }
        auto source = syclex::create_kernel_bundle_from_source(queue.get_context(), syclex::source_language::sycl,
                                                               text_of(folder / argv[2]), syclex::properties{headers});
        const std::vector<std::string> options(argv + 3, argv + argc);
        syclex::build(source, syclex::properties{syclex::save_log{&log}, syclex::build_options{options}});
    } catch (const std::exception & error) {
        return std::cerr << error.what() << "\n" << log << "\n", 1;
    }
    std::cout << log;
}
