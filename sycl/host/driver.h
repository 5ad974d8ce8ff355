/* The part that touches SYCL, behind plain C functions.
 *
 * driver.cpp is compiled on the user's machine against the SYCL headers found there
 * (plugin/llama_octet/sycl.py), so that the plugin itself neither needs SYCL to build nor loads it
 * where it is not installed. This header is all that both sides share.
 *
 * Every function that can fail returns 0 or NULL for that unless a comment says otherwise, and
 * error() then says why, in one line; no exception leaves the library. A queue belongs to one thread
 * at a time. Memory is USM. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised when anything below changes; both sides are then compiled again. */
#define OCTET_GPU_DRIVER_VERSION 1

typedef struct {
    char name[256], driver[128];
    char architecture[32];   /* "bmg-g21", "bmg-g31", "cpu", or the number of another architecture in hex */
    uint64_t memory;         /* bytes of the device */
    uint64_t max_allocation; /* bytes of one allocation */
    int32_t int8_8x16x32;    /* 1: has the s8 product of 8 x 16 x 32 (DPAS) */
} octet_gpu_info;

typedef struct octet_gpu_queue octet_gpu_queue;
typedef struct octet_gpu_program octet_gpu_program;
typedef struct octet_gpu_kernel octet_gpu_kernel;

/* A source text, the files it includes ("name", text) and the compiler's options. */
typedef struct {
    const char * text;
    const char * const * include_names;
    const char * const * include_texts;
    int32_t n_includes;
    const char * const * options;
    int32_t n_options;
} octet_gpu_source;

/* One argument of a kernel: a pointer into USM memory, or the bytes of a value. */
typedef struct {
    const void * data; /* the pointer itself if size is 0 */
    size_t size;
} octet_gpu_argument;

typedef struct {
    int32_t version; /* OCTET_GPU_DRIVER_VERSION */

    /* Why the last failing call of this thread failed. */
    const char * (*error)(void);

    /* Devices with USM that can compile SYCL source, in the order of the runtime; cpu chooses between
     * graphics and (for tests) central processors. -1: the runtime failed. info() takes 0 ... count - 1. */
    int32_t (*count)(int32_t cpu);
    int32_t (*info)(int32_t cpu, int32_t index, octet_gpu_info * out);

    octet_gpu_queue * (*open)(int32_t cpu, int32_t index);
    void (*close)(octet_gpu_queue *);

    /* Free bytes of the device as the driver tells them; 0 if it does not. */
    uint64_t (*free_memory)(octet_gpu_queue *);

    /* Device memory, or host memory that the device reads and writes (host != 0). 64-byte aligned. */
    void * (*allocate)(octet_gpu_queue *, size_t bytes, int32_t host);
    void (*release)(octet_gpu_queue *, void * memory);

    /* Enqueues a copy, or a kernel; in order. Faults of the device may only show in wait(). */
    int32_t (*copy)(octet_gpu_queue *, void * to, const void * from, size_t bytes);
    int32_t (*launch)(octet_gpu_queue *, octet_gpu_kernel *, const size_t global[2], const size_t local[2],
                      const octet_gpu_argument * arguments, int32_t count);
    int32_t (*wait)(octet_gpu_queue *);

    /* Compiles a source. load() takes what contents() gave: the bytes belong to the program. */
    octet_gpu_program * (*build)(octet_gpu_queue *, const octet_gpu_source *);
    octet_gpu_program * (*load)(octet_gpu_queue *, const void * bytes, size_t size);
    const void * (*contents)(octet_gpu_program *, size_t * size);
    void (*free_program)(octet_gpu_program *);

    /* By the name of its function; lives as long as its program. */
    octet_gpu_kernel * (*kernel)(octet_gpu_program *, const char * name);
} octet_gpu_driver;

/* The library's one symbol. */
__attribute__((visibility("default"))) const octet_gpu_driver * octet_gpu_driver_table(void);

#ifdef __cplusplus
}
#endif
