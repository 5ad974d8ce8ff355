// The library that the host side opens as its driver, with functions that the tests put in.
#include "../../sycl/host/driver.h"

static octet_gpu_driver table;

const octet_gpu_driver * octet_gpu_driver_table() { return &table; }

extern "C" __attribute__((visibility("default"))) void octet_test_set_table(const octet_gpu_driver * from) {
    table = *from;
}
