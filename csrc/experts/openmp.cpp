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

const OpenMp * look(void * library) {
    static OpenMp found;
    if (library && find_all(library, &found)) return &found;
    for (const char * name : {"libgomp.so.1", "libomp.so.5", "libiomp5.so"}) {
        void * installed = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (installed && find_all(installed, &found)) return &found;
    }
    return nullptr;
}

// The first call decides: a team must meet at the barrier of its own runtime.
const OpenMp * choose(void * library) {
    static const OpenMp * const chosen = look(library);
    return chosen;
}

}  // namespace

bool use_openmp_of(void * library) { return choose(library) != nullptr; }

const OpenMp * openmp() { return choose(nullptr); }

}  // namespace octet
