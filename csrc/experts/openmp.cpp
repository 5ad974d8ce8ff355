#include "openmp.h"

#include <dlfcn.h>

#include <initializer_list>

#include "octet/threads.h"

namespace octet {

namespace {

template <typename F>
bool find(void * library, const char * name, F * f) {
    *f = reinterpret_cast<F>(dlsym(library, name));
    return *f != nullptr;
}

bool find_all(void * library, OpenMp * o) {
    return find(library, "GOMP_parallel", &o->parallel) && find(library, "GOMP_barrier", &o->barrier) &&
           find(library, "omp_get_thread_num", &o->thread_num) &&
           find(library, "omp_get_num_threads", &o->num_threads) && find(library, "omp_in_parallel", &o->in_parallel);
}

const OpenMp * installed() {
    static OpenMp found;
    for (const char * name : {"libgomp.so.1", "libomp.so.5", "libiomp5.so"}) {
        void * library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (library && find_all(library, &found)) return &found;
    }
    return nullptr;
}

const OpenMp * given = nullptr;

}  // namespace

bool use_openmp_of(void * library) {
    static OpenMp found;
    if (!given && library && find_all(library, &found)) given = &found;
    return given != nullptr;
}

const OpenMp * openmp() {
    if (given) return given;
    static const OpenMp * const own = installed();
    return own;
}

}  // namespace octet
