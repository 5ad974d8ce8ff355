#include "status.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>

#include "../gpu/gpus.h"
#include "weights.h"

namespace octet {

Status & status() {
    static Status * s = new Status;  // outlives the buffers that are freed at exit
    return *s;
}

static Settings process_settings;

const Settings & settings() { return process_settings; }

std::string load_settings() { return read_settings(&process_settings); }

int pack_threads() {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

std::string quoted(const std::string & text) {
    std::string out = "\"";
    for (unsigned char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += char(c);
        } else if (c < 0x20) {
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\u%04x", c);
            out += escape;
        } else {
            out += char(c);
        }
    }
    return out + '"';
}

void Status::add(Stored * w) {
    std::lock_guard<std::mutex> lock(mutex_);
    weights_.push_back(w);
}

void Status::remove(Stored * w) {
    std::lock_guard<std::mutex> lock(mutex_);
    weights_.erase(std::remove(weights_.begin(), weights_.end(), w), weights_.end());
}

Count & Status::counter(const std::string & kernel) {
    std::lock_guard<std::mutex> lock(mutex_);
    return kernels_[kernel];
}

Count & Status::chain_counter(const Stored & gate, const Stored & down) {
    const bool experts = gate.ne[2] > 1;
    Count & count = counter((experts ? "chain " : "dense chain ") + gate.kind + ":" + down.kind);
    std::lock_guard<std::mutex> lock(mutex_);
    if (!count.down) count.down = experts ? down.expert_products : down.products;
    return count;
}

static std::string tensor_json(const Stored & s) {
    std::string shape;
    for (int i = 0; i < (s.ne[2] > 1 ? 3 : 2); ++i) shape += (i ? ", " : "") + std::to_string(s.ne[i]);
    return "{\"name\": " + quoted(s.name) + ", \"type\": " + quoted(s.type) + ", \"shape\": [" + shape +
           "], \"path\": " + quoted(path_name(s.decision.path)) + ", \"reason\": " + quoted(s.decision.reason) +
           ", \"layout\": " + quoted(s.layout) + ", \"rotation\": " + std::to_string(s.decision.rotation) +
           ", \"scale_group\": " + std::to_string(s.decision.scale_group) + ", \"bytes\": " + std::to_string(s.bytes) +
           ", \"calls\": " + std::to_string(s.calls.load()) + ", \"fault\": " + quoted(s.fault) + "}";
}

std::string Status::json() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::string isas, values, kernels, tensors;
    for (Isa isa : kIsas) {
        if (kernels_of(isa)) isas += (isas.empty() ? "" : ", ") + quoted(isa_name(isa));
    }
    for (auto & [name, value] : settings().values)
        values += (values.empty() ? "" : ", ") + quoted(name) + ": " + quoted(value);
    for (auto & [name, count] : kernels_) {
        if (count.calls == 0) continue;
        kernels += (kernels.empty() ? "" : ", ") + quoted(name) +
                   ": {\"calls\": " + std::to_string(count.calls.load()) +
                   ", \"rows\": " + std::to_string(count.rows.load()) + "}";
    }
    size_t bytes = 0;
    for (const Stored * w : weights_) {
        bytes += w->bytes;
        tensors += (tensors.empty() ? "" : ", ") + tensor_json(*w);
    }
    return "{\"version\": " + quoted(OCTET_VERSION) + ", \"isa\": " + quoted(isa_name(settings().isa)) +
           ", \"isas\": [" + isas + "], \"settings\": {" + values + "}, \"kernels\": {" + kernels +
           "}, \"gpus\": " + gpus_json() + ", \"bytes_packed\": " + std::to_string(bytes) + ", \"tensors\": [" +
           tensors + "]}";
}

bool Status::holds(const Model & model) {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::any_of(weights_.begin(), weights_.end(), [&](const Stored * w) { return w->model.get() == &model; });
}

std::string Status::faults(const Model & model) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::string list;
    for (Stored * w : weights_) {
        if (w->model.get() != &model || usable(*w)) continue;
        list +=
            (list.empty() ? "" : ", ") + ("{\"name\": " + quoted(w->name)) + ", \"fault\": " + quoted(w->fault) + "}";
    }
    return "[" + list + "]";
}

}  // namespace octet
