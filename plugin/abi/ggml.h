// What this backend uses of ggml, declared in its own words: the public functions of libggml-base
// and the interface structs of backend API version 2, as they are in the runtime versions listed in
// gate.cpp. gate.cpp checks sizes, offsets, numbers and names against the running library before
// anything else is called, since the API version alone does not tell two layouts apart.
//
// Everything here has C linkage and the names of ggml, so that the linker and a reader find the
// same thing; the structs carry only what their order and size require.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ggml {

constexpr int kApiVersion = 2;

// Numbers of ops, types and flags; gate.cpp compares them with the library's names.
enum Op : int {
    OP_NONE = 0,
    OP_ADD = 2,
    OP_MUL = 7,
    OP_MUL_MAT = 29,
    OP_MUL_MAT_ID = 30,
    OP_RESHAPE = 36,
    OP_VIEW = 37,
    OP_PERMUTE = 38,
    OP_TRANSPOSE = 39,
    OP_GLU = 100,
};
enum GluOp : int { GLU_REGLU = 0, GLU_GEGLU = 1, GLU_SWIGLU = 2 };
enum Type : int { TYPE_F32 = 0, TYPE_Q8_0 = 8, TYPE_I32 = 26 };
enum Flag : int { FLAG_OUTPUT = 2, FLAG_COMPUTE = 16 };
enum Status : int { STATUS_ALLOC_FAILED = -2, STATUS_FAILED = -1, STATUS_SUCCESS = 0 };
enum DeviceType : int { DEVICE_ACCEL = 3 };
enum Precision : int { PREC_UNDEFINED = 0, PREC_F32 = 10, PREC_F16 = 20 };
enum KvType : int { KV_UINT32 = 4, KV_INT32 = 5, KV_STRING = 8, KV_ARRAY = 9 };

struct Buffer;
struct BufferType;
struct Device;
struct Backend;
struct Registry;
struct Context;
struct GgufContext;

struct Tensor {
    int type;
    Buffer * buffer;
    int64_t ne[4];  // elements per dimension
    size_t nb[4];   // bytes between neighbours of a dimension
    int op;
    int32_t op_params[16];
    int32_t flags;
    Tensor * src[10];
    Tensor * view_src;
    size_t view_offs;
    void * data;
    char name[64];
    void * extra;
    char padding[8];
};

struct HashSet {
    size_t size;
    uint32_t * used;  // one bit per slot
    Tensor ** keys;
};

struct Graph {
    int size, n_nodes, n_leafs;
    Tensor **nodes, **grads, **grad_accs, **leafs;
    int32_t * use_counts;  // by slot of `visited`
    HashSet visited;
    int order;
    uint64_t uid;
};

struct BufferTypeInterface {
    const char * (*get_name)(BufferType *);
    Buffer * (*alloc_buffer)(BufferType *, size_t size);
    size_t (*get_alignment)(BufferType *);
    size_t (*get_max_size)(BufferType *);
    size_t (*get_alloc_size)(BufferType *, const Tensor *);
    bool (*is_host)(BufferType *);
};

struct BufferType {
    BufferTypeInterface iface;
    Device * device;
    void * context;
};

struct BufferInterface {
    void (*free_buffer)(Buffer *);
    void * (*get_base)(Buffer *);
    int (*init_tensor)(Buffer *, Tensor *);
    void (*memset_tensor)(Buffer *, Tensor *, uint8_t value, size_t offset, size_t size);
    void (*set_tensor)(Buffer *, Tensor *, const void * data, size_t offset, size_t size);
    void (*get_tensor)(Buffer *, const Tensor *, void * data, size_t offset, size_t size);
    void (*set_tensor_2d)(Buffer *, Tensor *, const void *, size_t, size_t, size_t, size_t, size_t);
    void (*get_tensor_2d)(Buffer *, const Tensor *, void *, size_t, size_t, size_t, size_t, size_t);
    bool (*cpy_tensor)(Buffer *, const Tensor * from, Tensor * to);
    void (*clear)(Buffer *, uint8_t value);
    void (*reset)(Buffer *);
};

struct Buffer {
    BufferInterface iface;
    BufferType * type;
    void * context;
    size_t size;
    int usage;
};

struct BackendInterface {
    const char * (*get_name)(Backend *);
    void (*free)(Backend *);
    void (*set_tensor_async)(Backend *, Tensor *, const void *, size_t, size_t);
    void (*get_tensor_async)(Backend *, const Tensor *, void *, size_t, size_t);
    void (*set_tensor_2d_async)(Backend *, Tensor *, const void *, size_t, size_t, size_t, size_t, size_t);
    void (*get_tensor_2d_async)(Backend *, const Tensor *, void *, size_t, size_t, size_t, size_t, size_t);
    bool (*cpy_tensor_async)(Backend *, Backend *, const Tensor *, Tensor *);
    void (*synchronize)(Backend *);
    void * (*graph_plan_create)(Backend *, const Graph *);
    void (*graph_plan_free)(Backend *, void *);
    void (*graph_plan_update)(Backend *, void *, const Graph *);
    int (*graph_plan_compute)(Backend *, void *);
    int (*graph_compute)(Backend *, Graph *);
    void (*event_record)(Backend *, void *);
    void (*event_wait)(Backend *, void *);
    void (*graph_optimize)(Backend *, Graph *, void *);
};

struct Backend {
    const uint8_t * guid;  // 16 bytes
    BackendInterface iface;
    Device * device;
    void * context;
};

struct DeviceCaps {
    bool async, host_buffer, buffer_from_host_ptr, events, mmap_support;
};

struct DeviceProps {
    const char *name, *description;
    size_t memory_free, memory_total;
    int type;
    const char * device_id;
    DeviceCaps caps;
};

struct DeviceInterface {
    const char * (*get_name)(Device *);
    const char * (*get_description)(Device *);
    void (*get_memory)(Device *, size_t * free, size_t * total);
    int (*get_type)(Device *);
    void (*get_props)(Device *, DeviceProps *);
    Backend * (*init_backend)(Device *, const char * params);
    BufferType * (*get_buffer_type)(Device *);
    BufferType * (*get_host_buffer_type)(Device *);
    Buffer * (*buffer_from_host_ptr)(Device *, void * ptr, size_t size, size_t max_tensor_size);
    bool (*supports_op)(Device *, const Tensor * op);
    bool (*supports_buft)(Device *, BufferType *);
    bool (*offload_op)(Device *, const Tensor * op);
    void * (*event_new)(Device *);
    void (*event_free)(Device *, void *);
    void (*event_synchronize)(Device *, void *);
};

struct Device {
    DeviceInterface iface;
    Registry * reg;
    void * context;
};

struct RegistryInterface {
    const char * (*get_name)(Registry *);
    size_t (*get_device_count)(Registry *);
    Device * (*get_device)(Registry *, size_t index);
    void * (*get_proc_address)(Registry *, const char * name);
};

struct Registry {
    int api_version;
    RegistryInterface iface;
    void * context;
};

struct TypeTraits {
    const char * type_name;
    int64_t block_weights, block_interleave;
    size_t block_bytes;
    bool is_quantized;
    void (*to_float)(const void * x, float * y, int64_t k);
    void (*from_float)(const float * x, void * y, int64_t k);
};

struct InitParams {
    size_t mem_size;
    void * mem_buffer;
    bool no_alloc;
};

struct GgufInitParams {
    bool no_alloc;
    Context ** ctx;
};

extern "C" {
const char * ggml_version();
const char * ggml_commit();
const char * ggml_op_name(int op);
const char * ggml_glu_op_name(int op);
const char * ggml_type_name(int type);
size_t ggml_nbytes(const Tensor *);
size_t ggml_tensor_overhead();
size_t ggml_graph_overhead();
const TypeTraits * ggml_get_type_traits(int type);
Context * ggml_init(InitParams);
void ggml_free(Context *);
Tensor * ggml_new_tensor_2d(Context *, int type, int64_t ne0, int64_t ne1);
Tensor * ggml_mul_mat(Context *, Tensor *, Tensor *);
Tensor * ggml_add(Context *, Tensor *, Tensor *);
Tensor * ggml_view_2d(Context *, Tensor *, int64_t ne0, int64_t ne1, size_t nb1, size_t offset);
void ggml_set_name(Tensor *, const char *);
Tensor * ggml_get_tensor(Context *, const char * name);
Graph * ggml_new_graph(Context *);
void ggml_build_forward_expand(Graph *, Tensor *);
BufferType * ggml_backend_cpu_buffer_type();
const char * ggml_backend_buft_name(BufferType *);
size_t ggml_backend_buft_get_alignment(BufferType *);
Buffer * ggml_backend_buffer_init(BufferType *, BufferInterface, void * context, size_t size);
GgufContext * gguf_init_from_file(const char * path, GgufInitParams);
void gguf_free(GgufContext *);
int64_t gguf_find_key(const GgufContext *, const char * key);
int gguf_get_kv_type(const GgufContext *, int64_t key);
int gguf_get_arr_type(const GgufContext *, int64_t key);
uint32_t gguf_get_val_u32(const GgufContext *, int64_t key);
const char * gguf_get_val_str(const GgufContext *, int64_t key);
size_t gguf_get_arr_n(const GgufContext *, int64_t key);
const void * gguf_get_arr_data(const GgufContext *, int64_t key);
const char * gguf_get_arr_str(const GgufContext *, int64_t key, size_t i);
int64_t gguf_get_n_tensors(const GgufContext *);
const char * gguf_get_tensor_name(const GgufContext *, int64_t tensor);
}

inline bool is_view_op(int op) {
    return op == OP_NONE || op == OP_RESHAPE || op == OP_VIEW || op == OP_PERMUTE || op == OP_TRANSPOSE;
}

}  // namespace ggml
