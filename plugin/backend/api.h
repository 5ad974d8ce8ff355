// What libggml-octet.so offers besides the backend interface. C linkage; also by get_proc_address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace octet {
void set_error(const std::string & line);
}

#define OCTET_API extern "C" __attribute__((visibility("default")))

// Why the registration or the last call on this thread failed; "" if it did not.
OCTET_API const char * octet_error();

// Announces, for this thread, the model file whose weights are about to be created. 0 if its
// metadata is understood.
OCTET_API int octet_model_begin(const char * path);
OCTET_API void octet_model_end();

// JSON. Both return the bytes needed, with the terminating NUL, and write nothing if size is less.
OCTET_API size_t octet_status(char * out, size_t size);
// {"path", "reason"} of a tensor of the announced model.
OCTET_API size_t octet_decide(const char * name, const char * type, const int64_t ne[4], char * out, size_t size);
