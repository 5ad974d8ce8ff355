#include "cpu_backend.h"

#include <dlfcn.h>
#include <link.h>

#include <string>

#include "ggml.h"

namespace ggml {

void * cpu_backend_library() {
    Dl_info base{};
    if (!dladdr(reinterpret_cast<void *>(&ggml_backend_cpu_buffer_type), &base) || !base.dli_fname) return nullptr;
    const std::string path = base.dli_fname;
    std::string wanted = path.substr(0, path.rfind('/') + 1) + "libggml-cpu";
    auto is_it = [](dl_phdr_info * loaded, size_t, void * data) {
        std::string & name = *static_cast<std::string *>(data);
        if (!loaded->dlpi_name || std::string(loaded->dlpi_name).compare(0, name.size(), name) != 0) return 0;
        name = loaded->dlpi_name;
        return 1;
    };
    return dl_iterate_phdr(is_it, &wanted) ? dlopen(wanted.c_str(), RTLD_LAZY | RTLD_NOLOAD) : nullptr;
}

}  // namespace ggml
