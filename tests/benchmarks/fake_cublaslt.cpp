// Stands in for libcublasLt: columns of column-major matrices are multiplied on the CPU as the descriptors say. An
// algorithm is four numbers: id, tile, stages, parts of k. Those with two parts run, and no others with parts.
#include <cstdint>
#include <cstring>

namespace {
struct Layout {
  int type;
  uint64_t rows, columns;
  int64_t leading, batch_stride;
  int32_t batch;
};
struct Description {
  int compute, scale;
  int32_t transposes[2];
};
struct Preference {
  uint64_t workspace;
  uint32_t alignments[2];
};
struct Algorithm {
  int32_t id, tile, stages, split_k;
  uint64_t rest[6];
};
struct Result {
  Algorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
constexpr int kInvalid = 7, kNotSupported = 15;
constexpr int kFloat = 0, kDouble = 1, kBfloat16 = 14;
Preference last_preference;

double load(const void* data, int type, int64_t i) {
  if (type == kDouble) return static_cast<const double*>(data)[i];
  if (type == kFloat) return static_cast<const float*>(data)[i];
  uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(data)[i]) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

void store(void* data, int type, int64_t i, double value) {
  if (type == kDouble) static_cast<double*>(data)[i] = value;
  float rounded = static_cast<float>(value);
  if (type == kFloat) static_cast<float*>(data)[i] = rounded;
  uint32_t bits;
  std::memcpy(&bits, &rounded, 4);
  if (type == kBfloat16) static_cast<uint16_t*>(data)[i] = bits >> 16;
}
}  // namespace

extern "C" {
int cublasLtCreate(void** handle) { return *handle = &last_preference, 0; }
int cublasLtMatmulDescCreate(Description** made, int compute, int scale) {
  return *made = new Description{compute, scale, {0, 0}}, 0;
}
int cublasLtMatmulDescDestroy(Description* made) { return delete made, 0; }
int cublasLtMatmulDescSetAttribute(Description* description, int attribute, const void* value, size_t size) {
  if (size != 4 || attribute < 3 || attribute > 4) return kInvalid;
  return std::memcpy(&description->transposes[attribute - 3], value, 4), 0;
}
int cublasLtMatrixLayoutCreate(Layout** made, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  return *made = new Layout{type, rows, columns, leading, 0, 1}, 0;
}
int cublasLtMatrixLayoutDestroy(Layout* made) { return delete made, 0; }
int cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value, size_t size) {
  if (size != (attribute == 5 ? 4 : 8)) return kInvalid;
  void* to = attribute == 5 ? static_cast<void*>(&layout->batch) : &layout->batch_stride;
  return std::memcpy(to, value, size), 0;
}
int cublasLtMatmulPreferenceCreate(Preference** made) { return *made = new Preference{}, 0; }
int cublasLtMatmulPreferenceDestroy(Preference* made) { return delete made, 0; }
int cublasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* value, size_t size) {
  if (size != (attribute == 1 ? 8 : 4)) return kInvalid;
  void* to = attribute == 1 ? static_cast<void*>(&preference->workspace) : &preference->alignments[attribute - 5];
  return std::memcpy(to, value, size), 0;
}
int cublasLtMatmulAlgoGetHeuristic(void*, Description*, Layout*, Layout*, Layout*, Layout*, Preference* preference,
                                   int asked, Result* results, int* count) {
  last_preference = *preference;
  if (asked < 3) return kInvalid;
  for (int i = 0; i < 3; ++i) results[i] = {{66, 20 + i, 0, 1, {}}, 0, i == 1 ? kNotSupported : 0, 1, {}};
  return *count = 3, 0;
}
int cublasLtMatmulAlgoGetIds(void*, int, int, int, int, int, int, int, int* ids, int* count) {
  ids[0] = 66, ids[1] = 67, ids[2] = 68;
  return *count = 3, 0;
}
int cublasLtMatmulAlgoInit(void*, int, int, int, int, int, int, int id, Algorithm* algorithm) {
  if (id == 68) return kNotSupported;
  return *algorithm = {id, 0, 0, 1, {}}, 0;
}
int cublasLtMatmulAlgoCheck(void*, Description*, Layout*, Layout*, Layout*, Layout*, const Algorithm* algorithm,
                            Result* result) {
  *result = {*algorithm, algorithm->tile == 23 ? size_t{1} << 30 : 0, 0, 1, {}};
  return algorithm->split_k <= 2 ? 0 : kNotSupported;
}
int cublasLtMatmulAlgoCapGetAttribute(const Algorithm*, int attribute, void* values, size_t size, size_t* written) {
  const uint32_t tiles[] = {20, 21, 22, 23}, stages[] = {35, 36}, yes[] = {1}, all[] = {7};
  const uint32_t* from = attribute == 6 ? tiles : attribute == 13 ? stages : attribute == 1 ? all : yes;
  *written = attribute == 6 ? sizeof(tiles) : attribute == 13 ? sizeof(stages) : 4;
  if (attribute == 7) return kInvalid;
  if (size != 0) std::memcpy(values, from, *written);
  return 0;
}
int cublasLtMatmulAlgoConfigSetAttribute(Algorithm* algorithm, int attribute, const void* value, size_t size) {
  if (size != (attribute == 8 ? 2 : 4)) return kInvalid;
  int32_t* to = attribute == 1 ? &algorithm->tile : attribute == 6 ? &algorithm->stages : &algorithm->split_k;
  if (attribute == 1 || attribute == 6 || attribute == 2) std::memcpy(to, value, 4);
  return 0;
}
int cublasLtMatmulAlgoConfigGetAttribute(const Algorithm* algorithm, int attribute, void* value, size_t size,
                                         size_t* written) {
  const int32_t values[] = {algorithm->id, algorithm->tile, algorithm->split_k, 0, 0, 0, algorithm->stages};
  *written = size;
  if (attribute <= 6) std::memcpy(value, &values[attribute], size);
  return 0;
}
int cublasLtMatmul(void*, const Description* description, const void* alpha, const void* a, const Layout* layout_a,
                   const void* b, const Layout* layout_b, const void* beta, const void*, const Layout*, void* d,
                   const Layout* layout_d, const Algorithm* algorithm, void*, size_t workspace, void* stream) {
  const int scale = description->scale;
  const bool fits = layout_a->leading >= static_cast<int64_t>(layout_a->rows) && workspace == (32 << 20) &&
                    layout_b->leading >= static_cast<int64_t>(layout_b->rows) && stream == nullptr &&
                    layout_d->leading >= static_cast<int64_t>(layout_d->rows) && load(alpha, scale, 0) == 1 &&
                    load(beta, scale, 0) == 0 && (scale == kDouble) == (layout_d->type == kDouble);
  if (!fits) return kInvalid;
  if (algorithm->id == 67) return kNotSupported;
  const bool is_a = description->transposes[0], is_b = description->transposes[1];
  const int64_t k = is_a ? layout_a->rows : layout_a->columns;
  if (k != static_cast<int64_t>(is_b ? layout_b->columns : layout_b->rows)) return kInvalid;
  for (int64_t item = 0; item < layout_d->batch; ++item)
    for (int64_t j = 0; j < static_cast<int64_t>(layout_d->columns); ++j)
      for (int64_t i = 0; i < static_cast<int64_t>(layout_d->rows); ++i) {
        double sum = 0;
        for (int64_t l = 0; l < k; ++l) {
          const int64_t at_a = is_a ? l + i * layout_a->leading : i + l * layout_a->leading;
          const int64_t at_b = is_b ? j + l * layout_b->leading : l + j * layout_b->leading;
          sum += load(a, layout_a->type, at_a + item * layout_a->batch_stride) *
                 load(b, layout_b->type, at_b + item * layout_b->batch_stride);
        }
        store(d, layout_d->type, i + j * layout_d->leading + item * layout_d->batch_stride, sum);
      }
  return 0;
}
uint32_t fake_alignment(int operand) { return last_preference.alignments[operand]; }
uint64_t fake_workspace() { return last_preference.workspace; }
int fake_compute_type(const Description* description) { return description->compute; }
}
