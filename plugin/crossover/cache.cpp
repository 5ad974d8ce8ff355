// A file, crossover-<hash of the key>.txt:
//
//     octet crossover 1
//     name value          one line per part of the key
//
//     rows ours_ms other_ms        one line per sample
//     check <hash of all before>
#include "cache.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <locale>
#include <sstream>

#include "files/files.h"

namespace octet {

namespace fs = std::filesystem;

namespace {

constexpr char kHead[] = "octet crossover 1";
constexpr char kPrefix[] = "crossover-";
constexpr size_t kLargestFile = 1 << 16, kMostFiles = 4096;

std::string key_text(const Key & key) {
    std::string text;
    for (const auto & [name, value] : key) text += name + " " + value + "\n";
    return text;
}

std::string file_text(const Key & key, const Curve & curve) {
    std::ostringstream text;
    text.imbue(std::locale::classic());  // no decimal comma, whatever the program's language
    text.precision(9);
    text << kHead << "\n" << key_text(key) << "\n";
    for (const Sample & s : curve) text << s.rows << " " << s.ours_ms << " " << s.other_ms << "\n";
    return text.str() + "check " + hash_of(text.str()) + "\n";
}

// False for anything but what file_text() writes.
bool parse(const std::string & text, Key * key, Curve * curve) {
    const size_t check = text.rfind("check ");
    if (check == std::string::npos || text.substr(check) != "check " + hash_of(text.substr(0, check)) + "\n")
        return false;
    std::istringstream lines(text.substr(0, check));
    lines.imbue(std::locale::classic());
    std::string line;
    if (!std::getline(lines, line) || line != kHead) return false;
    while (std::getline(lines, line) && !line.empty()) {
        const size_t blank = line.find(' ');
        if (blank == std::string::npos) return false;
        key->emplace_back(line.substr(0, blank), line.substr(blank + 1));
    }
    for (Sample s; lines >> s.rows >> s.ours_ms >> s.other_ms;) curve->push_back(s);
    return is_curve(*curve);
}

bool read_entry(const fs::path & path, CurveCache::Entry * entry) {
    std::string text;
    Curve curve;
    if (!read_file(path.string(), kLargestFile, &text) || !parse(text, &entry->key, &curve)) return false;
    entry->curve = std::make_shared<const Curve>(std::move(curve));
    return true;
}

}  // namespace

std::string cache_folder() {
    const char * chosen = std::getenv("OCTET_CACHE_DIR");
    if (chosen && *chosen) return chosen;
    const char * base = std::getenv("XDG_CACHE_HOME");
    if (base && *base == '/') return std::string(base) + "/llama-octet";
    const char * home = std::getenv("HOME");
    if (!home || !*home) {
        const passwd * user = getpwuid(getuid());
        home = user ? user->pw_dir : nullptr;
    }
    if (home && *home) return std::string(home) + "/.cache/llama-octet";
    return "/tmp/llama-octet-" + std::to_string(getuid());
}

std::string value_of(const Key & key, const char * name) {
    for (const auto & [n, value] : key) {
        if (n == name) return value;
    }
    return "";
}

std::string cpu_model() {
    // x86 and Arm name it differently; the first core's lines stand for all.
    const char * wanted[] = {"model name", "cpu family", "model", "stepping", "CPU implementer", "CPU part"};
    std::ifstream lines("/proc/cpuinfo");
    std::string line, found;
    while (std::getline(lines, line) && !line.empty()) {
        const size_t colon = line.find(':');
        if (colon == std::string::npos || colon + 2 > line.size()) continue;
        const std::string name = line.substr(0, line.find_last_not_of(" \t", colon - 1) + 1);
        for (const char * w : wanted) {
            if (name == w) found += (found.empty() ? "" : ", ") + line.substr(colon + 2);
        }
    }
    return found.empty() ? "unknown" : found;
}

CurveCache::CurveCache(std::string folder) : folder_(std::move(folder)) {
    std::error_code wrong;
    size_t files = 0;
    for (fs::directory_iterator at(folder_, wrong), end; !wrong && at != end && files < kMostFiles;
         at.increment(wrong)) {
        const std::string name = at->path().filename().string();
        if (name.rfind(kPrefix, 0) != 0 || at->path().extension() != ".txt") continue;
        std::error_code odd;
        if (!at->is_regular_file(odd)) continue;
        ++files;
        Entry entry;
        if (read_entry(at->path(), &entry)) entries_.push_back(std::move(entry));
    }
}

std::shared_ptr<const Curve> CurveCache::find(const Key & key) const {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const Entry & e : entries_) {
        if (e.key == key) return e.curve;
    }
    return nullptr;
}

bool CurveCache::keep(const Key & key, Curve curve) {
    const std::string text = file_text(key, curve);
    auto kept = std::make_shared<const Curve>(std::move(curve));
    {
        std::lock_guard<std::mutex> lock(mutex_);
        entries_.erase(std::remove_if(entries_.begin(), entries_.end(), [&](const Entry & e) { return e.key == key; }),
                       entries_.end());
        entries_.push_back({key, kept});
    }
    return write_file(folder_ + "/" + kPrefix + hash_of(key_text(key)) + ".txt", text);
}

std::vector<CurveCache::Entry> CurveCache::entries() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return entries_;
}

}  // namespace octet
