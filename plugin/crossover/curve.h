// Where one way of computing overtakes another, judged from timings of both.
//
// Nothing here knows what is timed: the CPU side compares our kernels with stock's, the GPU side its int8
// with its float products.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace octet {

struct Sample {
    double rows;     // mean rows of activations per expert, or rows of a dense product; above 0
    double ours_ms;  // above 0; best or median times, the same for all samples
    double other_ms;
};

// Ascending rows. Too few samples, or none, say that the time for measuring did not suffice.
using Curve = std::vector<Sample>;

// Whether it is one: rows ascending, every number finite and above 0.
bool is_curve(const Curve & curve);

// other / ours, above 1 where ours is faster: linear between the logarithms of the samples, and beyond
// the first and the last sample as there. 1 without samples.
double ratio_at(const Curve & curve, double rows);

// Fewer samples show no trend.
constexpr size_t kLeastSamples = 3;

struct Verdict {
    // Whether there are samples enough to say anything.
    bool enough;
    // Who is faster with the fewest and with the most rows measured.
    bool ours_few, ours_many;
    // Rows at which the ratio passes 1, the first time; 0 if it does not.
    double crossing;
    // Whether to rely on it: there are samples enough; the ratio passes 1 at most once; if it does, it moves steadily
    // (no step back by more than kMargin) and the two samples around the crossing are at least kMargin from 1; if it
    // does not, no sample is closer to 1 than that.
    bool clear;
    // The geometric mean of the ratio while generating (samples below kPromptRows) and while reading
    // prompts (the others), each of these the geometric mean of its samples: for weights that cannot
    // change sides from one batch to the next.
    double weighted;
};

constexpr double kMargin = 0.05;
constexpr double kPromptRows = 8;

Verdict judge(const Curve & curve);

// A few words, such as "ours from 5.3 rows on"; `other` is the name of the other side.
std::string describe(const Verdict & verdict, const char * other);

}  // namespace octet
