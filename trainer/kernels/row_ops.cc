// Ops on rows of tables, each in one pass over memory: the distinct ids of a step, the sums of the gradients of rows,
// and the update of rows with their optimizer slots. `trainer/kernels/library.py` compiles and loads this file.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
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
    const TensorShape shape = variables[0]->tensor()->shape();
    for (int k = 0; k < count; k++) {
      OP_REQUIRES(context, variables[k]->is_initialized && shape.dims() == 2 && variables[k]->tensor()->shape() == shape,
                  absl::FailedPreconditionError("a table or a slot is not initialized"));
    }
    OP_REQUIRES(context, periods->is_initialized && periods->tensor()->NumElements() == shape.dim_size(0),
                absl::FailedPreconditionError("the periods of a table are not initialized"));
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
    .Doc("As Unique: each id once, in the order of its first occurrence, and the place of each occurrence among them.");

// Gives ids their places in the order of their first occurrence, by open addressing.
class Places {
 public:
  explicit Places(int64_t most) {
    while ((int64_t{1} << bits_) < 2 * most) bits_++;  // at most half of the table is used
    table_.assign(size_t{1} << bits_, -1);
    ids_.reserve(most);
  }

  int32_t Of(int64_t id) {
    const uint64_t mask = table_.size() - 1;
    uint64_t slot = static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ull >> (64 - bits_);
    while (table_[slot] >= 0 && ids_[table_[slot]] != id) slot = (slot + 1) & mask;
    if (table_[slot] < 0) {
      table_[slot] = static_cast<int32_t>(ids_.size());
      ids_.push_back(id);
    }
    return table_[slot];
  }

  const std::vector<int64_t>& ids() const { return ids_; }

 private:
  int bits_ = 4;
  std::vector<int32_t> table_;
  std::vector<int64_t> ids_;
};

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
    Places found(count);
    for (int64_t i = 0; i < count; i++) place[i] = found.Of(ids[i]);
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({static_cast<int64_t>(found.ids().size())}), &distinct));
    std::copy(found.ids().begin(), found.ids().end(), distinct->flat<int64_t>().data());
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

// The contributions of replicas to the rows of a table in a round, as SparseConditionalAccumulator has them. It keeps the
// tensors as they came, and adds them up when they are taken.
class RowSums : public tensorflow::ResourceBase {
 public:
  struct Contribution {
    Tensor rows, gradients;
    float weight;
  };

  std::string DebugString() const override { return "RowSums"; }

  void Add(const Contribution& contribution, int64_t step) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (step >= step_) contributions_.push_back(contribution);
  }

  // The contributions, and counts a step, so that others of this step are dropped.
  std::vector<Contribution> Take() {
    std::lock_guard<std::mutex> lock(mutex_);
    step_++;
    return std::exchange(contributions_, {});
  }

  void Start(int64_t step) {
    std::lock_guard<std::mutex> lock(mutex_);
    step_ = step;
  }

 private:
  std::mutex mutex_;
  int64_t step_ = 0;
  std::vector<Contribution> contributions_;
};

// An op on the sums of a name, which all sessions of a server share.
class RowSumsOp : public OpKernel {
 public:
  explicit RowSumsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("shared_name", &name_));
  }

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<RowSums> sums;
    RowSums* found = nullptr;
    auto* manager = context->resource_manager();
    OP_REQUIRES_OK(context, manager->LookupOrCreate<RowSums>(manager->default_container(), name_, &found,
                                                             [](RowSums** made) {
                                                               *made = new RowSums();
                                                               return absl::OkStatus();
                                                             }));
    sums.reset(found);
    Compute(context, sums.get());
  }

 protected:
  virtual void Compute(OpKernelContext* context, RowSums* sums) = 0;

 private:
  std::string name_;
};

REGISTER_OP("TrainerAddToRowSums")
    .Attr("shared_name: string")
    .Input("rows: int64")
    .Input("gradients: float")
    .Input("weight: float")
    .Input("step: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext*) { return absl::OkStatus(); })
    .Doc("Adds a contribution, computed at a step, unless the present one is later.");

class AddToRowSums : public RowSumsOp {
 public:
  using RowSumsOp::RowSumsOp;

 protected:
  void Compute(OpKernelContext* context, RowSums* sums) override {
    sums->Add({context->input(0), context->input(1), context->input(2).scalar<float>()()},
              context->input(3).scalar<int64_t>()());
  }
};

REGISTER_KERNEL_BUILDER(Name("TrainerAddToRowSums").Device(tensorflow::DEVICE_CPU), AddToRowSums);

REGISTER_OP("TrainerTakeRowSums")
    .Attr("shared_name: string")
    .Attr("dim: int >= 1")
    .Output("rows: int64")
    .Output("averages: float")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->UnknownShapeOfRank(1));
      context->set_output(1, context->UnknownShapeOfRank(1));
      return absl::OkStatus();
    })
    .Doc("The rows of all contributions, each once, and for each the sum of its gradients by the sum of all weights.");

class TakeRowSums : public RowSumsOp {
 public:
  explicit TakeRowSums(OpKernelConstruction* context) : RowSumsOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim_));
  }

 protected:
  void Compute(OpKernelContext* context, RowSums* sums) override {
    const auto contributions = sums->Take();
    int64_t most = 0;
    float weight = 0;
    for (const auto& each : contributions) {
      OP_REQUIRES(context, each.gradients.NumElements() == each.rows.NumElements() * dim_,
                  absl::InvalidArgumentError("rows and gradients have different sizes"));
      most += each.rows.NumElements();
      weight += each.weight;
    }
    Places places(most);
    std::vector<int32_t> place;
    place.reserve(most);
    for (const auto& each : contributions) {
      const int64_t* rows = each.rows.flat<int64_t>().data();
      for (int64_t i = 0; i < each.rows.NumElements(); i++) place.push_back(places.Of(rows[i]));
    }
    const int64_t size = static_cast<int64_t>(places.ids().size());
    Tensor *rows, *averages;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({size}), &rows));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({size * dim_}), &averages));
    std::copy(places.ids().begin(), places.ids().end(), rows->flat<int64_t>().data());
    float* sum = averages->flat<float>().data();
    std::fill(sum, sum + size * dim_, 0.0f);
    const float scale = weight == 0 ? 0 : 1 / weight;
    int64_t number = 0;
    for (const auto& each : contributions) {
      const float* gradient = each.gradients.flat<float>().data();
      for (int64_t i = 0; i < each.rows.NumElements(); i++, number++, gradient += dim_) {
        float* __restrict own = sum + place[number] * dim_;
        for (int64_t j = 0; j < dim_; j++) own[j] += gradient[j] * scale;
      }
    }
  }

 private:
  int64_t dim_;
};

REGISTER_KERNEL_BUILDER(Name("TrainerTakeRowSums").Device(tensorflow::DEVICE_CPU), TakeRowSums);

REGISTER_OP("TrainerStartRowSums")
    .Attr("shared_name: string")
    .Input("step: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext*) { return absl::OkStatus(); })
    .Doc("Sets the present step: contributions to earlier ones are dropped.");

class StartRowSums : public RowSumsOp {
 public:
  using RowSumsOp::RowSumsOp;

 protected:
  void Compute(OpKernelContext* context, RowSums* sums) override { sums->Start(context->input(0).scalar<int64_t>()()); }
};

REGISTER_KERNEL_BUILDER(Name("TrainerStartRowSums").Device(tensorflow::DEVICE_CPU), StartRowSums);

}  // namespace
