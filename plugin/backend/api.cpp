#include "api.h"

#include <cstring>
#include <memory>

#include "decide.h"
#include "status.h"

namespace octet {

static std::string registration_error;
static thread_local std::string call_error;
static thread_local bool called = false;

void set_error(const std::string & line) { registration_error = line; }

static int result(const std::string & wrong) {
    called = true;
    call_error = wrong;
    return wrong.empty() ? 0 : 1;
}

static size_t write(const std::string & text, char * out, size_t size) {
    if (out && size > text.size()) std::memcpy(out, text.c_str(), text.size() + 1);
    return text.size() + 1;
}

}  // namespace octet

using namespace octet;

const char * octet_error() { return called ? call_error.c_str() : registration_error.c_str(); }

int octet_model_begin(const char * path) {
    auto model = std::make_shared<Model>();
    std::string wrong = read_model(path, model.get());
    if (wrong.empty()) set_current_model(model);
    return result(wrong);
}

void octet_model_end() { set_current_model(nullptr); }

size_t octet_status(char * out, size_t size) { return write(status().json(), out, size); }

size_t octet_decide(const char * name, const char * type, const int64_t ne[4], char * out, size_t size) {
    Decision d = decide(settings(), *current_model(), name, type, ne, op_of(ne));
    return write("{\"path\": " + quoted(path_name(d.path)) + ", \"reason\": " + quoted(d.reason) + "}", out, size);
}
