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

// The same for a caller that has read the file: name, type, shape (4 dimensions, the input first) and bytes of
// all tensors, and for those that octet wrote rotation and scale group (docs/format.md), -1 for the others.
// n_threads is what the model will be computed with and n_context the tokens of its context, 0 if that is not
// known.
OCTET_API int octet_model_begin_read(const char * path, int seed, int64_t n_tensors, const char * const * names,
                                     const char * const * types, const int64_t * shapes, const uint64_t * bytes,
                                     const int32_t * rotations, const int32_t * scale_groups, int n_threads,
                                     int n_context);

// Before the backend registers: the compiled SYCL driver (NULL: none, and why_not says why), this project's
// sycl/ folder, and a folder for compiled programs.
OCTET_API void octet_use_gpus(const char * driver, const char * sources, const char * cache, const char * why_not);

// JSON. All of them return the bytes needed, with the terminating NUL, and write nothing if size is less.
OCTET_API size_t octet_status(char * out, size_t size);
// {"layout", "reason"} of the announced model: "packed" or "native" (backend/layout.h).
OCTET_API size_t octet_layout(char * out, size_t size);
// {"path", "reason", "label", "measured"} of a tensor of the announced model. `label` is what `auto` wants
// measured (backend/auto.h), "" if nothing.
OCTET_API size_t octet_decide(const char * name, const char * type, const int64_t ne[4], char * out, size_t size);
// [{"name", "fault"}, ...] of the announced model's weights that contradict their file.
OCTET_API size_t octet_model_faults(char * out, size_t size);
// {"folder", "entries": [{"label", "isa", "threads", "layout", "cpu", "version", "current", "samples":
// [[rows, ours_ms, stock_ms], ...], "crossing", "clear", "weighted", "verdict"}, ...]}; current ones hold for
// this process. A crossing of null is none.
OCTET_API size_t octet_crossovers(char * out, size_t size);

// In which ggml and with which of its buffer types stock will run: part of what a measurement depends on.
OCTET_API void octet_set_stock(const char * description);

// Keeps a measurement with weights packed or in place: rows ascending, milliseconds of ours and of stock, for the
// announced model's threads. 0 done, 1 these are no timings, 2 it holds for this process but the cache folder cannot be
// written.
OCTET_API int octet_crossover_keep(const char * label, int packed, int n_samples, const double * rows,
                                   const double * ours_ms, const double * stock_ms);
