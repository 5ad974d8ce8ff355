#include "curve.h"

#include <cmath>
#include <cstddef>
#include <cstdio>

namespace octet {

namespace {

bool positive(double x) { return std::isfinite(x) && x > 0; }

double log_ratio(const Sample & s) { return std::log(s.other_ms / s.ours_ms); }

// Where the line between two samples passes ratio 1, which lies between theirs.
double between(const Sample & a, const Sample & b) {
    const double ya = log_ratio(a), yb = log_ratio(b), xa = std::log(a.rows), xb = std::log(b.rows);
    return std::exp(xa + (xb - xa) * ya / (ya - yb));
}

}  // namespace

bool is_curve(const Curve & curve) {
    double last = 0;
    for (const Sample & s : curve) {
        if (!positive(s.rows) || !positive(s.ours_ms) || !positive(s.other_ms) || s.rows <= last) return false;
        last = s.rows;
    }
    return true;
}

double ratio_at(const Curve & c, double rows) {
    if (c.empty()) return 1;
    if (rows <= c.front().rows) return std::exp(log_ratio(c.front()));
    for (size_t i = 1; i < c.size(); ++i) {
        if (rows > c[i].rows) continue;
        const double t = std::log(rows / c[i - 1].rows) / std::log(c[i].rows / c[i - 1].rows);
        return std::exp(log_ratio(c[i - 1]) * (1 - t) + log_ratio(c[i]) * t);
    }
    return std::exp(log_ratio(c.back()));
}

Verdict judge(const Curve & c) {
    // Ratios 1.05 and 1 / 1.05 are equally far from 1.
    const double margin = std::log(1 + kMargin);
    Verdict v{};
    v.weighted = 1;
    if (c.empty()) return v;
    v.enough = c.size() >= kLeastSamples;
    v.ours_few = log_ratio(c.front()) > 0;
    v.ours_many = log_ratio(c.back()) > 0;
    v.clear = v.enough;
    int crossings = 0;
    double sum[2] = {0, 0};
    int count[2] = {0, 0};
    for (size_t i = 0; i < c.size(); ++i) {
        const double y = log_ratio(c[i]);
        const int prompt = c[i].rows >= kPromptRows;
        sum[prompt] += y;
        ++count[prompt];
        if (i == 0 || (y > 0) == (log_ratio(c[i - 1]) > 0)) continue;
        if (crossings++ == 0) v.crossing = between(c[i - 1], c[i]);
        if (std::fabs(y) < margin || std::fabs(log_ratio(c[i - 1])) < margin) v.clear = false;
    }
    if (crossings > 1) v.clear = false;
    for (size_t i = 0; i < c.size(); ++i) {
        const double y = log_ratio(c[i]);
        if (crossings == 0 && std::fabs(y) < margin) v.clear = false;
        if (crossings == 1 && i > 0) {
            const double step = y - log_ratio(c[i - 1]);
            if ((v.ours_many ? step : -step) < -margin) v.clear = false;
        }
    }
    double weighted = 0;
    int parts = 0;
    for (int part = 0; part < 2; ++part) {
        if (!count[part]) continue;
        weighted += sum[part] / count[part];
        ++parts;
    }
    v.weighted = std::exp(weighted / parts);
    return v;
}

std::string describe(const Verdict & v, const char * other) {
    std::string text;
    if (!v.enough) return "the time was not enough to tell";
    if (v.crossing == 0) {
        text = (v.ours_few ? "ours" : other) + std::string(" at any number of rows");
    } else {
        char rows[32];
        std::snprintf(rows, sizeof rows, "%.3g", v.crossing);
        text = (v.ours_few ? "ours" : other) + std::string(" below ") + rows + " rows, " +
               (v.ours_few ? other : "ours") + " above";
    }
    return v.clear ? text : text + ", but not clearly";
}

}  // namespace octet
