/* Expert layers on a graphics processor as plain C functions, for tests and `octet doctor --gpu-report`.
 *
 * Conventions and types are those of octet/c_api.h; functions return 0, or -1 (NULL) and then
 * octet_gpu_error() says why. */
#pragma once

#include "octet/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct octet_gpu octet_gpu;
typedef struct octet_gpu_weight octet_gpu_weight;

typedef struct {
    const char * driver;  /* the library that driver.cpp was compiled to */
    const char * sources; /* folder of this project's sycl/ */
    const char * cache;   /* folder for compiled programs; NULL: none */
    int32_t cpu;          /* 1: plain kernels on a central processor */
    int32_t index;        /* of the device */
    int32_t tiles;        /* 2, 4, 8: tiles of a thread; 0: by the rows */
    int32_t work_groups;  /* 1: threads share tiles */
    int32_t registers;    /* 128 or 256 */
} octet_gpu_options;

OCTET_KERNEL_API const char * octet_gpu_error(void);

/* JSON, a list of devices. Returns the bytes needed with the NUL, 0 on failure; writes nothing if size is less. */
OCTET_KERNEL_API size_t octet_gpu_list(const char * driver, int32_t cpu, char * out, size_t size);

OCTET_KERNEL_API octet_gpu * octet_gpu_open(const octet_gpu_options * options);
OCTET_KERNEL_API void octet_gpu_close(octet_gpu * gpu);

/* Programs that were compiled, and read from the cache, so far. */
OCTET_KERNEL_API void octet_gpu_programs(const octet_gpu * gpu, int32_t * built, int32_t * cached);

/* `packed` and `float_products` are not used. The weight must go before its device. */
OCTET_KERNEL_API octet_gpu_weight * octet_gpu_weight_new(octet_gpu * gpu, const octet_kernel_weight_spec * spec);
OCTET_KERNEL_API void octet_gpu_weight_free(octet_gpu_weight * weight);

/* As octet_kernel_run_chain, with weights of the device in gate, up and down; half != 0: fp16 products. */
OCTET_KERNEL_API int octet_gpu_run_chain(octet_gpu * gpu, const octet_kernel_chain * chain, int32_t half);

/* As octet_kernel_multiply_by_expert. */
OCTET_KERNEL_API int octet_gpu_multiply_by_expert(octet_gpu * gpu, const octet_gpu_weight * weight, const float * x,
                                                  int64_t x_rows, const int32_t * ids, int64_t n_tokens, int64_t n_used,
                                                  float * out, int32_t half);

#ifdef __cplusplus
}
#endif
