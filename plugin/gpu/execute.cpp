#include "execute.h"

#include <initializer_list>

#include "../backend/status.h"
#include "choose.h"
#include "weights.h"

namespace octet {

namespace {

const gpu::OwnedWeight * weight_of(const Stored & s, const Graphics * g) {
    return s.on_gpu && s.on_gpu->device == g ? s.on_gpu->weight.get() : nullptr;
}

void count(const char * what, const std::string & kinds, int64_t rows) {
    if (rows > 0) status().counter(std::string(what) + kinds).add(rows);
}

bool float_only(std::initializer_list<const gpu::OwnedWeight *> weights) {
    for (const gpu::OwnedWeight * w : weights) {
        if (gpu::float_only(w->view().format)) return true;
    }
    return false;
}

// What was enqueued before a failure must be over before its memory is used again.
void settle(Graphics & g) {
    try {
        g.gpu->wait();
    } catch (const gpu::Error & why) {
        switch_off(g, why.what());
    }
}

// run(choose) until it goes through or nothing is left to try. A program that cannot be built closes one
// kind of arithmetic, and so does a lack of memory fp16, which needs more; anything else closes the device.
// only_half: a weight has no int8 products.
template <typename F>
bool attempt(Graphics & g, const gpu::ChooseArithmetic & preferred, bool only_half, const std::string & kinds, F run) {
    std::string closed;  // what was given up; said when something else went through, so that a failure is one line
    const auto close_half = [&](const std::string & why) {
        g.no_half = true;
        closed = (only_half ? "no fp16 products, the CPU takes over what has no others: "
                            : "int8 products instead of fp16: ") +
                 why;
    };
    while (!g.off) {
        if (only_half && g.no_half) {
            if (!closed.empty()) say(g.name + ": " + closed);
            return false;
        }
        bool half_asked = false;
        const gpu::ChooseArithmetic choose = [&](double rows) {
            const bool half = only_half || g.no_int8 || (!g.no_half && preferred(rows) == gpu::Arithmetic::half);
            half_asked |= half;
            return half ? gpu::Arithmetic::half : gpu::Arithmetic::int8;
        };
        try {
            const gpu::Ran ran = run(choose);
            if (!closed.empty()) say(g.name + ": " + closed);
            if (!ran.ok) return false;
            count("sycl ", kinds, ran.int8_rows);
            count("sycl half ", kinds, ran.half_rows);
            return true;
        } catch (const gpu::BuildError & why) {
            const bool half = why.need == gpu::Need::half;
            if (why.need == gpu::Need::both || (half ? g.no_int8 : g.no_half)) {
                switch_off(g, why.what());
            } else if (half) {
                close_half(why.what());
            } else {
                g.no_int8 = true;
                closed = std::string("fp16 products instead of int8: ") + why.what();
            }
            settle(g);
        } catch (const gpu::MemoryError & why) {
            if (half_asked && !g.no_int8)
                close_half(why.what());
            else
                switch_off(g, why.what());
            settle(g);
        } catch (const gpu::Error & why) {
            switch_off(g, why.what());
        }
    }
    return false;
}

}  // namespace

bool run_chain_on_gpu(const MatchedChain & m, const Chain & chain) {
    if (!m.gate_weight->on_gpu) return false;
    Graphics & g = *m.gate_weight->on_gpu->device;
    const auto *gate = weight_of(*m.gate_weight, &g), *up = weight_of(*m.up_weight, &g),
               *down = weight_of(*m.down_weight, &g);
    if (g.off || !gate || !up || !down || chain.n_ff % 16 != 0) return false;
    const std::string kinds = m.gate_weight->kind + ":" + m.down_weight->kind;
    std::lock_guard<std::mutex> lock(g.gpu->mutex());
    const gpu::ChooseArithmetic preferred = chooser(g, *m.gate_weight, *m.up_weight, *m.down_weight, chain);
    const bool only_half = float_only({gate, up, down});
    return attempt(g, preferred, only_half, "chain " + kinds, [&](const gpu::ChooseArithmetic & choose) {
        return g.runner->run_chain(chain, gate->view(), up->view(), down->view(), choose);
    });
}

bool multiply_on_gpu(Stored & s, const RowsIn & x, int64_t x_rows_per_token, const Routing & routing, float * out,
                     int64_t out_stride) {
    if (!s.on_gpu) return false;
    Graphics & g = *s.on_gpu->device;
    const auto * w = weight_of(s, &g);
    if (g.off || !w || out_stride != s.ne[1]) return false;
    std::lock_guard<std::mutex> lock(g.gpu->mutex());
    const gpu::ChooseArithmetic preferred = [&](double) {
        return s.weight.float_products ? gpu::Arithmetic::half : gpu::Arithmetic::int8;
    };
    return attempt(g, preferred, float_only({w}), "experts " + s.kind, [&](const gpu::ChooseArithmetic & choose) {
        return g.runner->multiply(w->view(), x, x_rows_per_token, routing, out, choose);
    });
}

}  // namespace octet
