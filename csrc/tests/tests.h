// The parts of the test program.
#pragma once

namespace octet_test {

void test_elementwise();  // rotate, quantize, glu, weighted_sum
void test_product();      // the kernels' products, panel by panel
void test_multiply();     // products of whole matrices, experts, threads
void test_chain();        // the fused chain
void test_threads();      // the team of threads
void test_c_api();        // arguments that the C interface refuses

}  // namespace octet_test
