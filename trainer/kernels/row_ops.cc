// Ops on rows of tables, each in one pass over memory: the distinct ids of a step, the sums of the gradients of rows,
// and the update of rows with their optimizer slots. `trainer/kernels/library.py` compiles and loads this file.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
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
#include "dynamic_table.h"
#include "row_rules.h"

namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::Var;
using tensorflow::shape_inference::InferenceContext;
using trainer::DynamicTable;
using trainer::kMaxSlots;
using trainer::Part;
using trainer::Rule;
using trainer::Rules;

// Rows that are updated under the locks of their variables at a time. A read of the variables waits no longer.
constexpr int64_t kBlock = 4096;
// Below this many numbers, one thread does all: to wait for another one takes longer, above all on a busy machine.
constexpr int64_t kAlone = 1 << 18;

// Runs a function on parts of [0, total), of which each unit has `cost` numbers, on the threads of the session.
void Run(OpKernelContext* context, int64_t total, int64_t cost, const std::function<void(int64_t, int64_t)>& function) {
  if (total * cost < kAlone) return function(0, total);
  const auto* workers = context->device()->tensorflow_cpu_worker_threads();
  tensorflow::Shard(workers->num_threads, workers->workers, total, 4 * cost, function);
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
    for (int64_t begin = 0; begin < total; begin += kBlock) {
      const int64_t end = std::min(total, begin + kBlock);
      // Always in this order. Reads take one of them at a time.
      tensorflow::mutex_lock lock_periods(*periods->mu());
      std::vector<std::unique_ptr<tensorflow::mutex_lock>> locks;
      for (int k = 0; k < count; k++) locks.push_back(std::make_unique<tensorflow::mutex_lock>(*variables[k]->mu()));
      int32_t* marks = periods->tensor()->flat<int32_t>().data();
      Part part{0, 0, dim, numbers, gradients.flat<float>().data(), nullptr, Data(variables[0]), {}, dim,
                settings.flat<float>().data()};
      for (int k = 0; k < kMaxSlots; k++) part.slots[k] = k < rule_.slots ? Data(variables[1 + k]) : part.values;
      auto update = [&](int64_t first, int64_t last) {
        Part own = part;
        own.begin = begin + first;
        own.end = begin + last;
        for (int64_t i = own.begin; i < own.end; i++) marks[numbers[i]] = period;
        rule_.update(own);
      };
      Run(context, end - begin, dim * (1 + count), update);
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
  // Makes room for so many more ids.
  void Reserve(int64_t more) {
    const int64_t most = static_cast<int64_t>(ids_.size()) + more;
    if (static_cast<int64_t>(table_.size()) >= 2 * most) return;  // at most half of the table is used
    while ((int64_t{1} << bits_) < 2 * most) bits_++;
    table_.assign(size_t{1} << bits_, -1);
    for (size_t place = 0; place < ids_.size(); place++) table_[Slot(ids_[place])] = static_cast<int32_t>(place);
  }

  int32_t Of(int64_t id) {
    const uint64_t slot = Slot(id);
    if (table_[slot] < 0) {
      table_[slot] = static_cast<int32_t>(ids_.size());
      ids_.push_back(id);
    }
    return table_[slot];
  }

  void Clear() {
    ids_.clear();
    std::fill(table_.begin(), table_.end(), -1);
  }

  const std::vector<int64_t>& ids() const { return ids_; }

 private:
  // That of an id, or the empty one where it goes.
  uint64_t Slot(int64_t id) const {
    const uint64_t mask = table_.size() - 1;
    uint64_t slot = static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ull >> (64 - bits_);
    while (table_[slot] >= 0 && ids_[table_[slot]] != id) slot = (slot + 1) & mask;
    return slot;
  }

  int bits_ = 4;
  std::vector<int32_t> table_;
  std::vector<int64_t> ids_;
};

// Adds a row of numbers to another one.
inline void AddRow(const float* __restrict from, int64_t dim, float* __restrict to) {
  for (int64_t j = 0; j < dim; j++) to[j] += from[j];
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
    Places found;
    found.Reserve(count);
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
        AddRow(gradient + i * dim_, dim_, sums + place[i] * dim_);
      }
    }
  }

 private:
  int inputs_;
  int64_t dim_;
};

REGISTER_KERNEL_BUILDER(Name("TrainerSumOfRows").Device(tensorflow::DEVICE_CPU), SumOfRows);

// The sums of the contributions of replicas to the rows of a table in a round, as SparseConditionalAccumulator has them.
class RowSums : public tensorflow::ResourceBase {
 public:
  std::string DebugString() const override { return "RowSums"; }

  // Adds the gradients [count, dim] of distinct rows, and a weight, unless the present step is later.
  void Add(const int64_t* rows, int64_t count, const float* gradients, int64_t dim, float weight, int64_t step) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (step < step_) return;
    weight_ += weight;
    places_.Reserve(count);
    for (int64_t i = 0; i < count; i++, gradients += dim) {
      const size_t begin = static_cast<size_t>(places_.Of(rows[i])) * dim;
      if (begin == sums_.size()) {
        sums_.insert(sums_.end(), gradients, gradients + dim);
      } else {
        AddRow(gradients, dim, sums_.data() + begin);
      }
    }
  }

  // Counts a step, so that further contributions to this one are dropped, and empties the sums, after `function` got the
  // rows, their sums and the weight of all contributions.
  absl::Status Take(
      const std::function<absl::Status(const std::vector<int64_t>&, const std::vector<float>&, float)>& function) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto status = function(places_.ids(), sums_, weight_);
    step_++;
    places_.Clear();
    sums_.clear();
    weight_ = 0;
    return status;
  }

  void Start(int64_t step) {
    std::lock_guard<std::mutex> lock(mutex_);
    step_ = step;
  }

 private:
  std::mutex mutex_;
  int64_t step_ = 0;
  float weight_ = 0;
  Places places_;
  std::vector<float> sums_;
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
    .Attr("dim: int >= 1")
    .Input("rows: int64")
    .Input("gradients: float")
    .Input("weight: float")
    .Input("step: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext*) { return absl::OkStatus(); })
    .Doc("Adds a contribution, computed at a step, unless the present one is later.");

class AddToRowSums : public RowSumsOp {
 public:
  explicit AddToRowSums(OpKernelConstruction* context) : RowSumsOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dim", &dim_));
  }

 protected:
  void Compute(OpKernelContext* context, RowSums* sums) override {
    const Tensor &rows = context->input(0), &gradients = context->input(1);
    OP_REQUIRES(context, gradients.NumElements() == rows.NumElements() * dim_,
                absl::InvalidArgumentError("rows and gradients have different sizes"));
    sums->Add(rows.flat<int64_t>().data(), rows.NumElements(), gradients.flat<float>().data(), dim_,
              context->input(2).scalar<float>()(), context->input(3).scalar<int64_t>()());
  }

 private:
  int64_t dim_;
};

REGISTER_KERNEL_BUILDER(Name("TrainerAddToRowSums").Device(tensorflow::DEVICE_CPU), AddToRowSums);

REGISTER_OP("TrainerTakeRowSums")
    .Attr("shared_name: string")
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
  using RowSumsOp::RowSumsOp;

 protected:
  void Compute(OpKernelContext* context, RowSums* sums) override {
    OP_REQUIRES_OK(context, sums->Take([&](const auto& ids, const auto& found, float weight) {
      Tensor *rows, *averages;
      TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({static_cast<int64_t>(ids.size())}), &rows));
      TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({static_cast<int64_t>(found.size())}), &averages));
      std::copy(ids.begin(), ids.end(), rows->flat<int64_t>().data());
      const float scale = weight == 0 ? 0 : 1 / weight;
      std::transform(found.begin(), found.end(), averages->flat<float>().data(),
                     [scale](float sum) { return sum * scale; });
      return absl::OkStatus();
    }));
  }
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

// A table that grows, on its server.
class DynamicTableResource : public tensorflow::ResourceBase {
 public:
  explicit DynamicTableResource(const trainer::Options& options) : table(options) {}
  std::string DebugString() const override { return "DynamicTable"; }

  trainer::DynamicTable table;
};

// An op on the table of a name, which all sessions of a server share.
class DynamicTableOp : public OpKernel {
 public:
  explicit DynamicTableOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("shared_name", &name_));
  }

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<DynamicTableResource> found;
    const auto status = Find(context, &found);
    OP_REQUIRES(context, status.ok(), absl::FailedPreconditionError("the table " + name_ + " is not initialized"));
    Compute(context, &found->table);
  }

 protected:
  virtual void Compute(OpKernelContext* context, DynamicTable* table) = 0;

  absl::Status Find(OpKernelContext* context, tensorflow::core::RefCountPtr<DynamicTableResource>* found) const {
    DynamicTableResource* resource = nullptr;
    auto* manager = context->resource_manager();
    TF_RETURN_IF_ERROR(manager->Lookup<DynamicTableResource>(manager->default_container(), name_, &resource));
    found->reset(resource);
    return absl::OkStatus();
  }

  // What runs parts of an op on the threads of the session.
  static DynamicTable::Parallel Threads(OpKernelContext* context) {
    return [context](int64_t total, int64_t cost, const std::function<void(int64_t, int64_t)>& function) {
      Run(context, total, cost, function);
    };
  }

  std::string name_;
};

template <class T>
void Output(OpKernelContext* context, int number, const std::vector<T>& values, int64_t width = 0) {
  const int64_t rows = static_cast<int64_t>(values.size()) / std::max<int64_t>(width, 1);
  Tensor* output;
  OP_REQUIRES_OK(context, context->allocate_output(number, width ? TensorShape({rows, width}) : TensorShape({rows}),
                                                   &output));
  std::copy(values.begin(), values.end(), output->flat<T>().data());
}

const auto kNoShape = [](InferenceContext* context) {
  for (int i = 0; i < context->num_outputs(); i++) context->set_output(i, context->UnknownShape());
  return absl::OkStatus();
};

REGISTER_OP("TrainerCreateDynamicTable")
    .Attr("shared_name: string")
    .Attr("dim: int >= 1")
    .Attr("slots: list(float)")
    .Attr("capacity: int >= 1")
    .Attr("admit_after: int >= 1")
    .Attr("expire_after: int >= 0")
    .Attr("initializer: {'constant', 'uniform', 'normal', 'truncated'}")
    .Attr("first: float")
    .Attr("second: float")
    .Attr("seed: int")
    .SetIsStateful()
    .SetShapeFn(kNoShape)
    .Doc("Makes an empty table, in place of one of its name.");

class CreateDynamicTable : public OpKernel {
 public:
  explicit CreateDynamicTable(OpKernelConstruction* context) : OpKernel(context) {
    int64_t seed;
    std::string initializer;
    OP_REQUIRES_OK(context, context->GetAttr("shared_name", &name_));
    OP_REQUIRES_OK(context, context->GetAttr("dim", &options_.dim));
    OP_REQUIRES_OK(context, context->GetAttr("slots", &options_.slots));
    OP_REQUIRES_OK(context, context->GetAttr("capacity", &options_.capacity));
    OP_REQUIRES_OK(context, context->GetAttr("admit_after", &options_.admit_after));
    OP_REQUIRES_OK(context, context->GetAttr("expire_after", &options_.expire_after));
    OP_REQUIRES_OK(context, context->GetAttr("initializer", &initializer));
    options_.initializer = initializer == "constant"  ? trainer::Initializer::kConstant
                           : initializer == "uniform" ? trainer::Initializer::kUniform
                           : initializer == "normal"  ? trainer::Initializer::kNormal
                                                      : trainer::Initializer::kTruncated;
    OP_REQUIRES_OK(context, context->GetAttr("first", &options_.first));
    OP_REQUIRES_OK(context, context->GetAttr("second", &options_.second));
    OP_REQUIRES_OK(context, context->GetAttr("seed", &seed));
    options_.seed = static_cast<uint64_t>(seed);
  }

  void Compute(OpKernelContext* context) override {
    auto* manager = context->resource_manager();
    manager->Delete<DynamicTableResource>(manager->default_container(), name_).IgnoreError();  // there may be none
    DynamicTableResource* made = nullptr;
    try {
      made = new DynamicTableResource(options_);
    } catch (const std::bad_alloc&) {
      context->SetStatus(absl::ResourceExhaustedError("no room for the capacity of the table " + name_));
      return;
    }
    OP_REQUIRES_OK(context, manager->Create(manager->default_container(), name_, made));
  }

 private:
  std::string name_;
  trainer::Options options_;
};

REGISTER_KERNEL_BUILDER(Name("TrainerCreateDynamicTable").Device(tensorflow::DEVICE_CPU), CreateDynamicTable);

REGISTER_OP("TrainerHasDynamicTable")
    .Attr("shared_name: string")
    .Output("is_there: bool")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("Whether there is a table of this name.");

class HasDynamicTable : public DynamicTableOp {
 public:
  using DynamicTableOp::DynamicTableOp;

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<DynamicTableResource> found;
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &output));
    output->scalar<bool>()() = Find(context, &found).ok();
  }

 protected:
  void Compute(OpKernelContext*, DynamicTable*) override {}
};

REGISTER_KERNEL_BUILDER(Name("TrainerHasDynamicTable").Device(tensorflow::DEVICE_CPU), HasDynamicTable);

REGISTER_OP("TrainerReadDynamicRows")
    .Attr("shared_name: string")
    .Input("ids: int64")
    .Input("now: int64")
    .Output("values: float")
    .SetIsStateful()
    .SetShapeFn(kNoShape)
    .Doc("The values of the rows of distinct ids, flat. Ids without a row get one, if they are admitted, or else zeros.");

class ReadDynamicRows : public DynamicTableOp {
 public:
  using DynamicTableOp::DynamicTableOp;

 protected:
  void Compute(OpKernelContext* context, DynamicTable* table) override {
    const Tensor& ids = context->input(0);
    Tensor* output;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, TensorShape({ids.NumElements() * table->options().dim}), &output));
    const auto now = static_cast<int32_t>(context->input(1).scalar<int64_t>()());
    table->Read(ids.flat<int64_t>().data(), ids.NumElements(), now, output->flat<float>().data(), Threads(context));
  }
};

REGISTER_KERNEL_BUILDER(Name("TrainerReadDynamicRows").Device(tensorflow::DEVICE_CPU), ReadDynamicRows);

REGISTER_OP("TrainerUpdateDynamicRows")
    .Attr("shared_name: string")
    .Attr("rule: string")
    .Input("ids: int64")
    .Input("gradients: float")
    .Input("settings: float")
    .SetIsStateful()
    .SetShapeFn(kNoShape)
    .Doc("Updates the rows of distinct ids by an optimizer, and marks them. Ids without a row are passed over.");

class UpdateDynamicRows : public DynamicTableOp {
 public:
  explicit UpdateDynamicRows(OpKernelConstruction* context) : DynamicTableOp(context) {
    std::string name;
    OP_REQUIRES_OK(context, context->GetAttr("rule", &name));
    const auto found = Rules().find(name);
    OP_REQUIRES(context, found != Rules().end(), absl::InvalidArgumentError("no rule " + name));
    rule_ = found->second;
  }

 protected:
  void Compute(OpKernelContext* context, DynamicTable* table) override {
    const Tensor &ids = context->input(0), &gradients = context->input(1), &settings = context->input(2);
    const auto& options = table->options();
    OP_REQUIRES(context,
                gradients.NumElements() == ids.NumElements() * options.dim &&
                    settings.NumElements() == rule_.settings && static_cast<size_t>(rule_.slots) == options.slots.size(),
                absl::InvalidArgumentError("gradients, settings or slots have the wrong size"));
    table->Update(ids.flat<int64_t>().data(), ids.NumElements(), gradients.flat<float>().data(), rule_,
                  settings.flat<float>().data(), Threads(context));
  }

 private:
  Rule rule_;
};

REGISTER_KERNEL_BUILDER(Name("TrainerUpdateDynamicRows").Device(tensorflow::DEVICE_CPU), UpdateDynamicRows);

REGISTER_OP("TrainerChangedDynamicRows")
    .Attr("shared_name: string")
    .Input("since: int32")
    .Input("period: int32")
    .Output("numbers: int64")
    .Output("ids: int64")
    .Output("used: int32")
    .Output("values: float")
    .SetIsStateful()
    .SetShapeFn(kNoShape)
    .Doc("The rows that have changed, or left, in the period `since` or later, with their slots; begins another period.");

class ChangedDynamicRows : public DynamicTableOp {
 public:
  using DynamicTableOp::DynamicTableOp;

 protected:
  void Compute(OpKernelContext* context, DynamicTable* table) override {
    const auto found = table->Changed(context->input(0).scalar<int32_t>()(), context->input(1).scalar<int32_t>()());
    Output(context, 0, found.numbers);
    Output(context, 1, found.ids);
    Output(context, 2, found.used);
    Output(context, 3, found.values, table->width());
  }
};

REGISTER_KERNEL_BUILDER(Name("TrainerChangedDynamicRows").Device(tensorflow::DEVICE_CPU), ChangedDynamicRows);

REGISTER_OP("TrainerDynamicRows")
    .Attr("shared_name: string")
    .Input("start: int64")
    .Input("end: int64")
    .Output("ids: int64")
    .Output("used: int32")
    .Output("values: float")
    .SetIsStateful()
    .SetShapeFn(kNoShape)
    .Doc("The rows with these numbers, with their slots; those that are not in use have the smallest id.");

class DynamicRows : public DynamicTableOp {
 public:
  using DynamicTableOp::DynamicTableOp;

 protected:
  void Compute(OpKernelContext* context, DynamicTable* table) override {
    const auto found = table->Between(context->input(0).scalar<int64_t>()(), context->input(1).scalar<int64_t>()());
    Output(context, 0, found.ids);
    Output(context, 1, found.used);
    Output(context, 2, found.values, table->width());
  }
};

REGISTER_KERNEL_BUILDER(Name("TrainerDynamicRows").Device(tensorflow::DEVICE_CPU), DynamicRows);

REGISTER_OP("TrainerLoadDynamicRows")
    .Attr("shared_name: string")
    .Input("ids: int64")
    .Input("used: int32")
    .Input("values: float")
    .SetIsStateful()
    .SetShapeFn(kNoShape)
    .Doc("Puts rows, with their slots, into a table.");

class LoadDynamicRows : public DynamicTableOp {
 public:
  using DynamicTableOp::DynamicTableOp;

 protected:
  void Compute(OpKernelContext* context, DynamicTable* table) override {
    const Tensor &ids = context->input(0), &used = context->input(1), &values = context->input(2);
    OP_REQUIRES(context,
                used.NumElements() == ids.NumElements() && values.NumElements() == ids.NumElements() * table->width(),
                absl::InvalidArgumentError("ids and values have different sizes"));
    table->Load(ids.flat<int64_t>().data(), ids.NumElements(), used.flat<int32_t>().data(),
                values.flat<float>().data(), Threads(context));
  }
};

REGISTER_KERNEL_BUILDER(Name("TrainerLoadDynamicRows").Device(tensorflow::DEVICE_CPU), LoadDynamicRows);

REGISTER_OP("TrainerCountDynamicRows")
    .Attr("shared_name: string")
    .Output("counts: int64")
    .SetIsStateful()
    .SetShapeFn(kNoShape)
    .Doc("The end of the numbers of rows, the rows, those that have left for others, the period, bytes of the index.");

class CountDynamicRows : public DynamicTableOp {
 public:
  using DynamicTableOp::DynamicTableOp;

 protected:
  void Compute(OpKernelContext* context, DynamicTable* table) override {
    const auto found = table->Count();
    Output<int64_t>(context, 0, {found.numbers, found.rows, found.left, found.period, table->IndexBytes()});
  }
};

REGISTER_KERNEL_BUILDER(Name("TrainerCountDynamicRows").Device(tensorflow::DEVICE_CPU), CountDynamicRows);

REGISTER_OP("TrainerBeginDynamicPeriod")
    .Attr("shared_name: string")
    .Input("period: int32")
    .SetIsStateful()
    .SetShapeFn(kNoShape)
    .Doc("Begins a period, the mark of later changes.");

class BeginDynamicPeriod : public DynamicTableOp {
 public:
  using DynamicTableOp::DynamicTableOp;

 protected:
  void Compute(OpKernelContext* context, DynamicTable* table) override {
    table->BeginPeriod(context->input(0).scalar<int32_t>()());
  }
};

REGISTER_KERNEL_BUILDER(Name("TrainerBeginDynamicPeriod").Device(tensorflow::DEVICE_CPU), BeginDynamicPeriod);

}  // namespace
