/* The kernels as plain C functions, for tests and benchmarks.
 *
 * Every array is dense and row-major; its shape is written [rows][columns]. Unless a comment says
 * otherwise a function returns 0, or -1 if an argument is wrong, and then octet_kernel_error()
 * says which. `isa` is a name that octet_kernel_isas() lists; NULL is the fastest of them.
 * Floating point runs in its default mode (round to nearest, subnormals kept) whatever the
 * caller's mode is. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define OCTET_KERNEL_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* Why the last call of this thread failed; "" if none did. Valid until its next call. */
OCTET_KERNEL_API const char * octet_kernel_error(void);

/* Number of instruction sets that this build and this machine have, slowest first; the names of the
 * first `capacity` go to `names`, which may be NULL if capacity is 0. */
OCTET_KERNEL_API int octet_kernel_isas(const char ** names, int capacity);

/* Weights and bytes of a block of a file's format ("q8_0", "iq4_nl", "q2_0", "iq3_s", "iq3_xxs", "iq2_s"). */
OCTET_KERNEL_API int octet_kernel_format(const char * format, int64_t * block_weights, int64_t * block_bytes);

/* ---- element by element ---- */

/* x[rows][k] in place: times the signs of `seed` (0 ... 65535), Walsh-Hadamard in blocks of `block`
 * (32, 64, 128) columns, times 1 / sqrt(block). block divides k. */
OCTET_KERNEL_API int octet_kernel_rotate(const char * isa, float * x, int64_t rows, int64_t k, int block, int seed);

/* x[rows][k] onto the q8_1 grid, one scale per `group` columns (a multiple of 32 that divides k, 0 =
 * k): q[rows][k] and d[rows][k / group], x = d * q. */
OCTET_KERNEL_API int octet_kernel_quantize(const char * isa, const float * x, int64_t rows, int64_t k, int64_t group,
                                           int8_t * q, float * d);

/* w[rows][k] rotated (block 0 = not) and rounded to int8 with one fp16 scale per `group` columns (a
 * multiple of 32 that divides k, 0 = k), as q8_0 blocks[rows][k / 32][34]: the load-time quantizer.
 * Fails if a value is not finite or a scale does not fit fp16. */
OCTET_KERNEL_API int octet_kernel_quantize_weights(const float * w, int64_t rows, int64_t k, int block, int seed,
                                                   int64_t group, uint8_t * blocks);

/* y[i] = exp(x[i]) as the activations use it: x clamped to [-87, 88]. The same on every instruction set. */
OCTET_KERNEL_API int octet_kernel_exp(const float * x, float * y, int64_t n);

/* h[i] = act(g[i]) * u[i]; op is "swiglu", "geglu" or "reglu". */
OCTET_KERNEL_API int octet_kernel_glu(const char * isa, const char * op, const float * g, const float * u, float * h,
                                      int64_t n);

/* out[n] = w[0] * y[0] + w[1] * y[1] + ... in this order, of y[count][n]; w[count], NULL = all 1. */
OCTET_KERNEL_API int octet_kernel_weighted_sum(const char * isa, const float * y, const float * w, int count,
                                               float * out, int64_t n);

/* ---- weights ---- */

typedef struct octet_kernel_weight octet_kernel_weight;

typedef struct {
    const char * format;
    int64_t n_experts;      /* 1 for a dense weight */
    int64_t n, k;           /* output rows of one expert; columns */
    int32_t scale_group;    /* columns that share a scale: 32, or 0 (the row) and 128 for q8_0 */
    int32_t packed;         /* 1: re-encoded here; 0: the blocks stay where they are and must outlive the weight */
    int32_t rotation;       /* block that the activations are rotated in; 0: not */
    int32_t seed;           /* of the rotation's signs, 0 ... 65535 */
    int32_t float_products; /* 1: dequantized, times float activations */
    const uint8_t * blocks; /* [n_experts][n][k / block_weights][block_bytes] */
    size_t bytes;           /* of blocks; has to agree with the shape */
} octet_kernel_weight_spec;

/* NULL if the spec is wrong, or if blocks of one scale range have different scales. */
OCTET_KERNEL_API octet_kernel_weight * octet_kernel_weight_new(const octet_kernel_weight_spec * spec);
OCTET_KERNEL_API void octet_kernel_weight_free(octet_kernel_weight * weight);

/* Bytes of its packed panels; 0 if it is not packed. */
OCTET_KERNEL_API size_t octet_kernel_weight_bytes(const octet_kernel_weight * weight);

/* out[n][k] = the weights of one expert, as the products see them. */
OCTET_KERNEL_API int octet_kernel_dequantize(const octet_kernel_weight * weight, int64_t expert, float * out);

/* ---- products ---- */

/* out[rows][n] = rows that are already quantized, q[rows][k] and d[rows][k / g], times one expert.
 * g is 32, or the weight's scale range if that is larger. Neither rotates nor quantizes. */
OCTET_KERNEL_API int octet_kernel_product(const char * isa, const octet_kernel_weight * weight, int64_t expert,
                                          const int8_t * q, const float * d, int64_t rows, float * out);

/* The same with float rows x[rows][k] and dequantized weights. */
OCTET_KERNEL_API int octet_kernel_product_float(const char * isa, const octet_kernel_weight * weight, int64_t expert,
                                                const float * x, int64_t rows, float * out);

/* out[rows][n] = x[rows][k] rotated, quantized and multiplied, as the weight says, on n_threads (1 ... 256). */
OCTET_KERNEL_API int octet_kernel_multiply(const char * isa, const octet_kernel_weight * weight, const float * x,
                                           int64_t rows, float * out, int n_threads);

/* out[n_tokens][n_used][n]: token t, slot s is expert ids[n_tokens][n_used] of row s % x_rows of
 * x[n_tokens][x_rows][k]. x_rows is 1 or n_used. */
OCTET_KERNEL_API int octet_kernel_multiply_by_expert(const char * isa, const octet_kernel_weight * weight,
                                                     const float * x, int64_t x_rows, const int32_t * ids,
                                                     int64_t n_tokens, int64_t n_used, float * out, int n_threads);

typedef struct {
    const octet_kernel_weight * gate; /* n = n_ff, or 2 n_ff with up's rows behind gate's */
    const octet_kernel_weight * up;   /* NULL: merged into gate; n_ff is then a multiple of 16 */
    const octet_kernel_weight * down; /* k = n_ff */
    const char * glu;                 /* "swiglu", "geglu", "reglu" */
    int64_t n_tokens, n_used;
    const float * x;       /* [n_tokens][gate's k] */
    const int32_t * ids;   /* [n_tokens][n_used] */
    const float * weights; /* [n_tokens][n_used], NULL = all 1 */
    float * out;           /* [n_tokens][down's n]; may overlap x, ids and weights */
} octet_kernel_chain;

/* gate and up, GLU, down, times weights, sum over the token's experts. */
OCTET_KERNEL_API int octet_kernel_run_chain(const char * isa, const octet_kernel_chain * chain, int n_threads);

#ifdef __cplusplus
}
#endif
