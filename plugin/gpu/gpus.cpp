#include "gpus.h"

#include <pthread.h>

#include <cstdio>
#include <cstring>

#include "../backend/status.h"
#include "devices.h"

namespace octet {

namespace {

struct Told {
    std::string driver, sources, cache, why_not;
} told;

std::vector<std::unique_ptr<Graphics>> & list() {
    static auto * all = new std::vector<std::unique_ptr<Graphics>>;  // outlives the weights that are freed at exit
    return *all;
}

bool is_battlemage(const octet_gpu_info & d) { return std::strncmp(d.architecture, "bmg-", 4) == 0; }

// "" if a device is to be used.
std::string unsuitable(const Settings & s, const octet_gpu_info & d) {
    if (s.sycl_cpu) return "";
    if (!is_battlemage(d) && s.sycl != Switch::on) return "no Battlemage";
    if (!d.int8_8x16x32) return "no int8 products of 8x16x32 (DPAS)";
    return "";
}

std::string gibibytes(uint64_t bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f GiB", double(bytes) / double(1 << 30));
    return text;
}

void open_one(const Settings & s, int index) {
    auto g = std::make_unique<Graphics>();
    g->name = "OCTET-SYCL" + std::to_string(list().size());
    gpu::Setup setup;
    setup.cpu = s.sycl_cpu;
    setup.index = index;
    setup.sources = told.sources;
    setup.cache = told.cache;
    setup.registers = s.sycl_registers;
    g->gpu = std::make_unique<gpu::Gpu>(setup);
    g->runner = std::make_unique<gpu::Runner>(*g->gpu, gpu::Choices{s.sycl_tiles, s.sycl_work_groups});
    make_devices(*g);
    const octet_gpu_info & d = g->gpu->info();
    say(g->name + ": " + d.name + " (" + d.architecture + ", driver " + d.driver + ", " + gibibytes(d.memory) +
        "): experts as " + (s.moe == Switch::off ? "fp16" : "int8") + " (off: OCTET_SYCL=0)");
    list().push_back(std::move(g));
}

}  // namespace

static thread_local bool holding = false;
static thread_local std::vector<std::string> held;

void say(const std::string & line) {
    if (holding)
        held.push_back(line);
    else
        std::fprintf(stderr, "octet: %s\n", line.c_str());
}

void hold_lines() { holding = true; }

void release_lines() {
    holding = false;
    for (const std::string & line : held) say(line);
    held.clear();
}

void use_gpus(const std::string & driver, const std::string & sources, const std::string & cache,
              const std::string & why_not) {
    told = {driver, sources, cache, why_not};
}

void open_gpus(const Settings & s) {
    if (s.sycl == Switch::off || s.sycl_hidden) return;
    const bool wanted = s.sycl == Switch::on || s.sycl_cpu;
    std::string why = told.why_not, unfit, failed;
    if (!told.driver.empty()) {
        try {
            why = gpu::open_driver(told.driver);
            const std::vector<octet_gpu_info> all =
                why.empty() ? gpu::list_devices(s.sycl_cpu) : std::vector<octet_gpu_info>();
            for (size_t i = 0; i < all.size() && (i == 0 || !s.sycl_cpu); ++i) {
                const std::string not_this = unsuitable(s, all[i]);
                if (!not_this.empty()) {
                    unfit += (unfit.empty() ? "" : "; ") + std::string(all[i].name) + ": " + not_this;
                    continue;
                }
                try {
                    open_one(s, int(i));
                } catch (const gpu::Error & error) {  // another may do
                    failed += (failed.empty() ? "" : "; ") + std::string(error.what());
                }
            }
        } catch (const gpu::Error & error) {
            why = error.what();
        }
    }
    if (why.empty()) why = failed;
    if (!list().empty()) {
        if (!failed.empty()) say("a GPU is not used: " + failed);
        // The runtime does not live on in a forked child.
        pthread_atfork(nullptr, nullptr, [] {
            for (const auto & g : list()) g->off = true;
        });
    }
    // With `auto` an ordinary machine without such a card is nothing to speak of.
    if (wanted && why.empty()) why = unfit.empty() ? "the SYCL runtime finds none" : unfit;
    if (list().empty() && !why.empty()) say("no GPU is used: " + why);
}

const std::vector<std::unique_ptr<Graphics>> & gpus() { return list(); }

void switch_off(Graphics & g, const std::string & why) {
    if (!g.off.exchange(true)) say(g.name + ": " + why + "; the CPU takes over");
}

std::string gpus_json() {
    std::string out;
    for (const auto & g : gpus()) {
        const octet_gpu_info & d = g->gpu->info();
        out += (out.empty() ? "{" : ", {") + ("\"name\": " + quoted(g->name)) + ", \"device\": " + quoted(d.name) +
               ", \"architecture\": " + quoted(d.architecture) + ", \"driver\": " + quoted(d.driver) +
               ", \"memory\": " + std::to_string(d.memory) + ", \"off\": " + (g->off ? "true" : "false") +
               ", \"weight_bytes\": " + std::to_string(g->weight_bytes.load()) +
               ", \"programs_built\": " + std::to_string(g->gpu->built()) +
               ", \"programs_cached\": " + std::to_string(g->gpu->cached()) + "}";
    }
    return "[" + out + "]";
}

}  // namespace octet
