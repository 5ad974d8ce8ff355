#include "settings.h"

#include <fnmatch.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>

extern char ** environ;

namespace octet {

namespace {

using Parse = std::function<bool(const std::string &, Settings *)>;

struct Variable {
    const char * name;
    const char * fallback;
    std::string accepted;
    Parse parse;
};

Parse to_switch(Switch Settings::* field) {
    return [field](const std::string & v, Settings * s) {
        if (v != "auto" && v != "0" && v != "1") return false;
        s->*field = v == "auto" ? Switch::automatic : v == "1" ? Switch::on : Switch::off;
        return true;
    };
}

Parse to_bool(bool Settings::* field) {
    return [field](const std::string & v, Settings * s) {
        if (v != "0" && v != "1") return false;
        s->*field = v == "1";
        return true;
    };
}

Parse to_count(int64_t Settings::* field) {
    return [field](const std::string & v, Settings * s) {
        char * end;
        errno = 0;
        long long n = std::strtoll(v.c_str(), &end, 10);
        if (v.empty() || *end || errno || n < 0 || v[0] == '+' || v[0] == ' ') return false;
        s->*field = n;
        return true;
    };
}

Parse to_patterns(std::vector<std::string> Settings::* field) {
    return [field](const std::string & v, Settings * s) {
        for (size_t start = 0; start <= v.size();) {
            size_t comma = std::min(v.find(',', start), v.size());
            if (comma > start) (s->*field).push_back(v.substr(start, comma - start));
            start = comma + 1;
        }
        return true;
    };
}

bool to_layout(const std::string & v, Settings * s) {
    if (v != "auto" && v != "packed" && v != "native") return false;
    s->layout = v == "auto" ? LayoutChoice::automatic : v == "packed" ? LayoutChoice::packed : LayoutChoice::native;
    return true;
}

std::string isas_here() {
    std::string list = "auto";
    for (Isa isa : kIsas) {
        if (kernels_of(isa)) list += std::string(", ") + isa_name(isa);
    }
    return list;
}

bool to_isa(const std::string & v, Settings * s) {
    if (v == "auto") {
        s->isa = best_isa();
        return true;
    }
    for (Isa isa : kIsas) {
        if (v != isa_name(isa) || !kernels_of(isa)) continue;
        s->isa = isa;
        return true;
    }
    return false;
}

// Only checked here: the package reads it too.
bool any_text(const std::string &, Settings *) { return true; }

Parse only(const char * a, const char * b) {
    return [a, b](const std::string & v, Settings *) { return v == a || v == b; };
}

// One of a few numbers; "auto" leaves the default, if that is 0.
Parse to_number(int Settings::* field, std::initializer_list<int> accepted) {
    return [field, list = std::vector<int>(accepted)](const std::string & v, Settings * s) {
        for (int n : list) {
            if (v != std::to_string(n)) continue;
            s->*field = n;
            return true;
        }
        return v == "auto" && s->*field == 0;
    };
}

bool to_hidden(const std::string & v, Settings * s) {
    s->sycl_hidden = v == "0";
    return v == "0" || v.empty();
}

bool to_sycl_device(const std::string & v, Settings * s) {
    s->sycl_cpu = v == "cpu";
    return v == "cpu" || v.empty();
}

std::vector<Variable> variables() {
    const char * three = "auto, 0, 1";
    return {
        {"OCTET_W8A8", "auto", three, to_switch(&Settings::w8a8)},
        {"OCTET_MOE", "auto", three, to_switch(&Settings::moe)},
        {"OCTET_DENSE", "auto", three, to_switch(&Settings::dense)},
        {"OCTET_QUANTIZE", "0", "0, 1", to_bool(&Settings::quantize)},
        {"OCTET_ISA", "auto", isas_here() + " on this machine", to_isa},
        {"OCTET_LAYOUT", "auto", "auto, packed, native", to_layout},
        {"OCTET_MIN_K", "0", "a whole number from 0", to_count(&Settings::min_k)},
        {"OCTET_SKIP_ROWS", "0", "a whole number from 0", to_count(&Settings::skip_rows)},
        {"OCTET_INCLUDE", "", "comma-separated name patterns", to_patterns(&Settings::include)},
        {"OCTET_EXCLUDE", "", "comma-separated name patterns", to_patterns(&Settings::exclude)},
        {"OCTET_VERBOSE", "0", "0, 1", to_bool(&Settings::verbose)},
        {"OCTET_SYCL", "auto", three, to_switch(&Settings::sycl)},
        {"OCTET_SYCL_FORCE", "", "0, which hides the GPU", to_hidden},
        {"OCTET_SYCL_MT", "auto", "auto, 2, 4, 8", to_number(&Settings::sycl_tiles, {2, 4, 8})},
        {"OCTET_SYCL_WG", "1", "0, 1", to_bool(&Settings::sycl_work_groups)},
        {"OCTET_SYCL_GRF", "256", "128, 256", to_number(&Settings::sycl_registers, {128, 256})},
        {"OCTET_SYCL_DEVICE", "", "cpu, for tests", to_sycl_device},
        {"OCTET_CACHE_DIR", "", "a path", any_text},
        {"OCTET_MODEL", "", "a path", any_text},
        {"OCTET_DEBUG", "0", "0, 1", only("0", "1")},
    };
}

}  // namespace

std::string read_settings(Settings * settings) {
    const std::vector<Variable> known = variables();
    for (char ** e = environ; e && *e; ++e) {
        if (std::strncmp(*e, "OCTET_", 6) != 0 || std::strncmp(*e, "OCTET_TEST_", 11) == 0) continue;
        std::string name(*e, std::strcspn(*e, "="));
        bool found = false;
        for (const Variable & v : known) found |= name == v.name;
        if (found) continue;
        std::string names;
        for (const Variable & v : known) names += (names.empty() ? "" : ", ") + std::string(v.name);
        return name + " is not a variable of llama-octet; there are " + names;
    }
    for (const Variable & v : known) {
        const char * set = std::getenv(v.name);
        std::string value = set && *set ? set : v.fallback;
        if (!v.parse(value, settings)) return std::string(v.name) + "=" + value + ": accepted are " + v.accepted;
        settings->values.emplace_back(v.name, value);
    }
    return "";
}

std::string filtered(const Settings & s, const char * name, const int64_t ne[4]) {
    if (matches_any(s.exclude, name)) return "OCTET_EXCLUDE";
    if (!s.include.empty() && !matches_any(s.include, name)) return "OCTET_INCLUDE does not name it";
    if (ne[0] < s.min_k) return "K = " + std::to_string(ne[0]) + " is below OCTET_MIN_K";
    if (s.skip_rows > 0 && ne[1] >= s.skip_rows) return std::to_string(ne[1]) + " rows, OCTET_SKIP_ROWS";
    return "";
}

bool matches_any(const std::vector<std::string> & patterns, const char * name) {
    for (const std::string & p : patterns) {
        if (fnmatch(p.c_str(), name, 0) == 0) return true;
    }
    return false;
}

}  // namespace octet
