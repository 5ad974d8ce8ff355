// ggml's own CPU backend, as a library in this process.
#pragma once

namespace ggml {

// A handle of dlopen() of the loaded libggml-cpu* that lies beside the libggml-base we are bound to, for dlsym() in it
// and in what it depends on; nullptr if there is none, as where the CPU backend is part of another library.
void * cpu_backend_library();

}  // namespace ggml
