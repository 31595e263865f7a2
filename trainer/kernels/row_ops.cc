// Ops on rows of tables, each in one pass over memory: the distinct ids of a step, the sums of the gradients of rows,
// and the update of rows with their optimizer slots. `trainer/kernels/library.py` compiles and loads this file.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/util/work_sharder.h"

namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::Var;
using tensorflow::shape_inference::InferenceContext;

// Rows that are updated under the locks of their variables at a time. A read of the variables waits no longer.
constexpr int64_t kBlock = 4096;
// How far ahead of the present row memory is fetched.
constexpr int64_t kAhead = 8;
constexpr int kMaxSlots = 3;

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define VECTORISED __attribute__((target_clones("arch=haswell", "default")))
#else
#define VECTORISED
#endif

// Some rows to update: those with the numbers rows[begin] to rows[end].
struct Part {
  int64_t begin, end, dim;
  const int64_t* rows;
  const float* gradients;  // [rows, dim]
  float* values;           // the whole table, [n, dim]
  float* slots[kMaxSlots];
  // The learning rate, the share by which values decay, the largest absolute value of a gradient, and what a rule has.
  const float* settings;
};

// Defines the function that updates rows by a rule: a statement for one number `v` of a row, with gradient `g`, learning
// rate `rate`, the numbers `a`, `b` and `c` of its slots, and the settings `s` of the rule.
#define RULE(NAME, SLOTS, STATEMENT)                                                           \
  VECTORISED void NAME(const Part& p) {                                                        \
    const float rate = p.settings[0], keep = 1 - p.settings[1], limit = p.settings[2];         \
    const float* const s = p.settings + 3;                                                     \
    (void)s;                                                                                   \
    for (int64_t i = p.begin; i < p.end; i++) {                                                \
      if (i + kAhead < p.end) {                                                                \
        const int64_t next = p.rows[i + kAhead] * p.dim;                                       \
        for (int64_t j = 0; j < p.dim; j += 16) {                                              \
          __builtin_prefetch(p.values + next + j, 1);                                          \
          for (int k = 0; k < SLOTS; k++) __builtin_prefetch(p.slots[k] + next + j, 1);        \
        }                                                                                      \
      }                                                                                        \
      const int64_t at = p.rows[i] * p.dim;                                                    \
      float* __restrict values = p.values + at;                                                \
      float* __restrict first = p.slots[0] + at;                                               \
      float* __restrict second = p.slots[1] + at;                                              \
      float* __restrict third = p.slots[2] + at;                                               \
      const float* __restrict gradient = p.gradients + i * p.dim;                              \
      for (int64_t j = 0; j < p.dim; j++) {                                                    \
        float g = gradient[j], v = values[j] * keep;                                           \
        g = g > limit ? limit : g < -limit ? -limit : g;                                       \
        float a = SLOTS > 0 ? first[j] : 0, b = SLOTS > 1 ? second[j] : 0, c = SLOTS > 2 ? third[j] : 0; \
        STATEMENT                                                                              \
        values[j] = v;                                                                         \
        if (SLOTS > 0) first[j] = a;                                                           \
        if (SLOTS > 1) second[j] = b;                                                          \
        if (SLOTS > 2) third[j] = c;                                                           \
      }                                                                                        \
    }                                                                                          \
  }

// As Keras's optimizers of these names compute them.
RULE(Sgd, 0, { v -= rate * g; })
RULE(Momentum, 1, { a = a * s[0] - g * rate; v += a; })
RULE(Nesterov, 1, { a = a * s[0] - g * rate; v += a * s[0] - g * rate; })
RULE(Adagrad, 1, { a += g * g; v -= rate * g / std::sqrt(a + s[0]); })
RULE(RmsProp, 1, { a = s[0] * a + (1 - s[0]) * (g * g); v -= rate * g / std::sqrt(a + s[1]); })
RULE(Adam, 2, { a += (g - a) * s[0]; b += (g * g - b) * s[1]; v -= a * rate / (std::sqrt(b) + s[2]); })
RULE(AmsGrad, 3, {
  a += (g - a) * s[0];
  b += (g * g - b) * s[1];
  c = b > c ? b : c;
  v -= a * rate / (std::sqrt(c) + s[2]);
})
// Slots: the sum of the squares, and the linear term.
RULE(Ftrl, 2, {
  const float n = a + g * g;
  b += g + s[0] * v - (std::sqrt(n) - std::sqrt(a)) / rate * v;
  const float clipped = b > s[1] ? s[1] : b < -s[1] ? -s[1] : b;
  v = (clipped - b) / (std::sqrt(n) / rate + s[2]);
  a = n;
})

struct Rule {
  void (*update)(const Part&);
  int slots, settings;
};

const std::unordered_map<std::string, Rule>& Rules() {
  static const auto* rules = new std::unordered_map<std::string, Rule>{
      {"sgd", {Sgd, 0, 3}},         {"momentum", {Momentum, 1, 4}}, {"nesterov", {Nesterov, 1, 4}},
      {"adagrad", {Adagrad, 1, 4}}, {"rmsprop", {RmsProp, 1, 5}},   {"adam", {Adam, 2, 6}},
      {"amsgrad", {AmsGrad, 3, 6}}, {"ftrl", {Ftrl, 2, 6}},
  };
  return *rules;
}

// Lets a variable be updated in place: reads of all of it get a copy from now on.
absl::Status UpdateInPlace(OpKernelContext* context, Var* variable) {
  if (variable->copy_on_read_mode.load()) return absl::OkStatus();
  tensorflow::mutex_lock lock(*variable->mu());
  if (!variable->tensor()->RefCountIsOne()) {
    Tensor own;
    TF_RETURN_IF_ERROR(context->allocate_temp(variable->tensor()->dtype(), variable->tensor()->shape(), &own));
    const auto from = variable->tensor()->tensor_data();
    std::memcpy(const_cast<char*>(own.tensor_data().data()), from.data(), from.size());
    *variable->tensor() = own;
  }
  variable->copy_on_read_mode.store(true);
  return absl::OkStatus();
}

REGISTER_OP("TrainerUpdateRows")
    .Attr("slots: int >= 0")
    .Attr("rule: string")
    .Input("values: resource")
    .Input("states: slots * resource")
    .Input("periods: resource")
    .Input("period: int32")
    .Input("rows: int64")
    .Input("gradients: float")
    .Input("settings: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext*) { return absl::OkStatus(); })
    .Doc("Updates distinct rows of a table by an optimizer, and marks them with a period.");

class UpdateRows : public OpKernel {
 public:
  explicit UpdateRows(OpKernelConstruction* context) : OpKernel(context) {
    std::string name;
    int slots;
    OP_REQUIRES_OK(context, context->GetAttr("rule", &name));
    OP_REQUIRES_OK(context, context->GetAttr("slots", &slots));
    const auto found = Rules().find(name);
    OP_REQUIRES(context, found != Rules().end() && found->second.slots == slots,
                absl::InvalidArgumentError("no rule " + name + " with " + std::to_string(slots) + " slots"));
    rule_ = found->second;
  }

  void Compute(OpKernelContext* context) override {
    const int count = 1 + rule_.slots;
    tensorflow::core::RefCountPtr<Var> variables[1 + kMaxSlots], periods;
    for (int k = 0; k < count; k++) {
      OP_REQUIRES_OK(context, LookupResource(context, HandleFromInput(context, k), &variables[k]));
      OP_REQUIRES_OK(context, UpdateInPlace(context, variables[k].get()));
    }
    OP_REQUIRES_OK(context, LookupResource(context, HandleFromInput(context, count), &periods));
    OP_REQUIRES_OK(context, UpdateInPlace(context, periods.get()));
    const int32_t period = context->input(count + 1).scalar<int32_t>()();
    const Tensor &rows = context->input(count + 2), &gradients = context->input(count + 3);
    const Tensor& settings = context->input(count + 4);
    const TensorShape& shape = variables[0]->tensor()->shape();
    const int64_t dim = shape.dim_size(1), total = rows.NumElements();
    OP_REQUIRES(context, gradients.NumElements() == total * dim && settings.NumElements() == rule_.settings,
                absl::InvalidArgumentError("gradients or settings have the wrong size"));
    const int64_t* numbers = rows.flat<int64_t>().data();
    const auto [least, largest] = std::minmax_element(numbers, numbers + total);
    OP_REQUIRES(context, total == 0 || (*least >= 0 && *largest < shape.dim_size(0)),
                absl::InvalidArgumentError("a row is not in the table"));
    const auto* workers = context->device()->tensorflow_cpu_worker_threads();
    for (int64_t begin = 0; begin < total; begin += kBlock) {
      const int64_t end = std::min(total, begin + kBlock);
      // Always in this order. Reads take one of them at a time.
      tensorflow::mutex_lock lock_periods(*periods->mu());
      std::vector<std::unique_ptr<tensorflow::mutex_lock>> locks;
      for (int k = 0; k < count; k++) locks.push_back(std::make_unique<tensorflow::mutex_lock>(*variables[k]->mu()));
      int32_t* marks = periods->tensor()->flat<int32_t>().data();
      Part part{0, 0, dim, numbers, gradients.flat<float>().data(), Data(variables[0]), {}, settings.flat<float>().data()};
      for (int k = 0; k < kMaxSlots; k++) part.slots[k] = k < rule_.slots ? Data(variables[1 + k]) : part.values;
      auto update = [&](int64_t first, int64_t last) {
        Part own = part;
        own.begin = begin + first;
        own.end = begin + last;
        for (int64_t i = own.begin; i < own.end; i++) marks[numbers[i]] = period;
        rule_.update(own);
      };
      tensorflow::Shard(workers->num_threads, workers->workers, end - begin, 4 * dim * (1 + count), update);
    }
  }

 private:
  static float* Data(const tensorflow::core::RefCountPtr<Var>& variable) {
    return variable->tensor()->flat<float>().data();
  }

  Rule rule_;
};

REGISTER_KERNEL_BUILDER(Name("TrainerUpdateRows").Device(tensorflow::DEVICE_CPU), UpdateRows);

REGISTER_OP("TrainerDistinctIds")
    .Input("ids: int64")
    .Output("distinct: int64")
    .Output("places: int32")
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->UnknownShapeOfRank(1));
      context->set_output(1, context->input(0));
      return absl::OkStatus();
    })
    .Doc("Each id once, in ascending order, and the place of each occurrence among them.");

// Sorts numbers, with the places that they had, by radix.
void Sort(std::vector<int64_t>* ids, std::vector<int32_t>* places) {
  constexpr int kBits = 11;
  if (ids->empty()) return;
  const auto [least, largest] = std::minmax_element(ids->begin(), ids->end());
  const uint64_t origin = *least, range = static_cast<uint64_t>(*largest) - origin;
  std::vector<int64_t> other_ids(ids->size());
  std::vector<int32_t> other_places(ids->size());
  for (int shift = 0; shift < 64 && range >> shift; shift += kBits) {
    std::vector<int32_t> ends(1 << kBits, 0);
    const auto digit = [&](int64_t id) { return (static_cast<uint64_t>(id) - origin) >> shift & ((1 << kBits) - 1); };
    for (const int64_t id : *ids) ends[digit(id)]++;
    for (size_t k = 1; k < ends.size(); k++) ends[k] += ends[k - 1];
    for (size_t i = ids->size(); i-- > 0;) {
      const int32_t at = --ends[digit((*ids)[i])];
      other_ids[at] = (*ids)[i];
      other_places[at] = (*places)[i];
    }
    ids->swap(other_ids);
    places->swap(other_places);
  }
}

class DistinctIds : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& given = context->input(0);
    const int64_t count = given.NumElements();
    const int64_t* ids = given.flat<int64_t>().data();
    Tensor *places, *distinct;
    OP_REQUIRES_OK(context, context->allocate_output(1, given.shape(), &places));
    int32_t* place = places->flat<int32_t>().data();
    int bits = 4;
    while ((int64_t{1} << bits) < 2 * count) bits++;
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    std::vector<int32_t> table(mask + 1, -1);  // open addressing: at most half of it is used
    std::vector<int64_t> found;
    found.reserve(count);
    for (int64_t i = 0; i < count; i++) {
      uint64_t slot = static_cast<uint64_t>(ids[i]) * 0x9E3779B97F4A7C15ull >> (64 - bits);
      while (table[slot] >= 0 && found[table[slot]] != ids[i]) slot = (slot + 1) & mask;
      if (table[slot] < 0) {
        table[slot] = static_cast<int32_t>(found.size());
        found.push_back(ids[i]);
      }
      place[i] = table[slot];
    }
    const int64_t size = static_cast<int64_t>(found.size());
    std::vector<int32_t> before(size), after(size);
    std::iota(before.begin(), before.end(), 0);
    Sort(&found, &before);
    for (int64_t i = 0; i < size; i++) after[before[i]] = static_cast<int32_t>(i);
    for (int64_t i = 0; i < count; i++) place[i] = after[place[i]];
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({size}), &distinct));
    std::copy(found.begin(), found.end(), distinct->flat<int64_t>().data());
  }
};

REGISTER_KERNEL_BUILDER(Name("TrainerDistinctIds").Device(tensorflow::DEVICE_CPU), DistinctIds);

REGISTER_OP("TrainerSumOfRows")
    .Attr("N: int >= 1")
    .Attr("dim: int >= 1")
    .Input("gradients: N * float")
    .Input("places: N * int32")
    .Input("count: int32")
    .Output("sums: float")
    .SetShapeFn([](InferenceContext* context) {
      int dim;
      TF_RETURN_IF_ERROR(context->GetAttr("dim", &dim));
      context->set_output(0, context->Matrix(InferenceContext::kUnknownDim, dim));
      return absl::OkStatus();
    })
    .Doc("The sums [count, dim] of the rows [..., dim] of all gradients that have the same place.");

class SumOfRows : public OpKernel {
 public:
  explicit SumOfRows(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("N", &inputs_));
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim_));
  }

  void Compute(OpKernelContext* context) override {
    const int64_t count = context->input(2 * inputs_).scalar<int32_t>()();
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({count, dim_}), &output));
    float* sums = output->flat<float>().data();
    std::fill(sums, sums + count * dim_, 0.0f);
    for (int k = 0; k < inputs_; k++) {
      const Tensor &gradients = context->input(k), &places = context->input(inputs_ + k);
      const int64_t total = places.NumElements();
      OP_REQUIRES(context, gradients.NumElements() == total * dim_,
                  absl::InvalidArgumentError("gradients and places have different sizes"));
      const float* gradient = gradients.flat<float>().data();
      const int32_t* place = places.flat<int32_t>().data();
      for (int64_t i = 0; i < total; i++) {
        OP_REQUIRES(context, place[i] >= 0 && place[i] < count, absl::InvalidArgumentError("a place is out of range"));
        float* __restrict sum = sums + place[i] * dim_;
        const float* __restrict own = gradient + i * dim_;
        for (int64_t j = 0; j < dim_; j++) sum[j] += own[j];
      }
    }
  }

 private:
  int inputs_;
  int64_t dim_;
};

REGISTER_KERNEL_BUILDER(Name("TrainerSumOfRows").Device(tensorflow::DEVICE_CPU), SumOfRows);

}  // namespace
