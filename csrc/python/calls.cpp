// The operators as functions of Python's C interface, for torch_tiledmm.matmul and linear. torch.ops makes a stack of
// values of any call's arguments by their schema; to take two tensors out of their Python objects is a third less work.
//
// Each function returns NotImplemented where torch.ops has to look at the arguments: tensors of other classes, a mode
// of torch.overrides, what is no tensor or no text. Everything else of torch is below the dispatcher, which both ways
// call.
#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "torch/matmul.h"

namespace tiledmm {
namespace {

using at::Tensor;

// Whether torch.ops need not look at `count` tensors.
bool are_plain(PyObject* const* tensors, int count) {
  return !at::impl::torch_function_mode_enabled() && std::all_of(tensors, tensors + count, &THPVariable_CheckExact);
}

// Valid as long as the object; none where it is no text.
std::optional<std::string_view> text_of(PyObject* object) {
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_Check(object) ? PyUnicode_AsUTF8AndSize(object, &size) : nullptr;
  if (text) return std::string_view(text, size_t(size));
  PyErr_Clear();
  return std::nullopt;
}

// The operator's result, computed while other Python threads may run.
template <class Call>
PyObject* wrapped(const Call& call) {
  HANDLE_TH_ERRORS
  Tensor result;
  {
    const pybind11::gil_scoped_release others_run;
    result = call();
  }
  return THPVariable_Wrap(std::move(result));
  END_HANDLE_TH_ERRORS
}

// matmul(a, b, algorithm)
PyObject* matmul(PyObject*, PyObject* const* args, Py_ssize_t num_args) {
  if (num_args != 3 || !are_plain(args, 2)) Py_RETURN_NOTIMPLEMENTED;
  const auto algorithm = text_of(args[2]);
  if (!algorithm) Py_RETURN_NOTIMPLEMENTED;
  // Tensors of our own: another thread may give their objects other ones.
  const Tensor a = THPVariable_Unpack(args[0]), b = THPVariable_Unpack(args[1]);
  return wrapped([&] { return matmul_op().call(a, b, *algorithm, std::nullopt); });
}

// linear(input, weight, bias or None, activation, algorithm)
PyObject* linear(PyObject*, PyObject* const* args, Py_ssize_t num_args) {
  if (num_args != 5) Py_RETURN_NOTIMPLEMENTED;
  const bool has_bias = !Py_IsNone(args[2]);
  const auto activation = text_of(args[3]), algorithm = text_of(args[4]);
  if (!are_plain(args, has_bias ? 3 : 2) || !activation || !algorithm) Py_RETURN_NOTIMPLEMENTED;
  const Tensor input = THPVariable_Unpack(args[0]), weight = THPVariable_Unpack(args[1]);
  const std::optional<Tensor> bias = has_bias ? std::optional(THPVariable_Unpack(args[2])) : std::nullopt;
  return wrapped([&] { return linear_op().call(input, weight, bias, *activation, *algorithm, std::nullopt); });
}

using Function = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);
PyCFunction as_method(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef methods[] = {
    {"matmul", as_method(matmul), METH_FASTCALL,
     "matmul(a, b, algorithm), or NotImplemented: to be asked of torch.ops"},
    {"linear", as_method(linear), METH_FASTCALL,
     "linear(input, weight, bias, activation, algorithm), or NotImplemented: to be asked of torch.ops"},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_calls", "torch_tiledmm's operators", 0, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace tiledmm

PyMODINIT_FUNC PyInit__calls() {
  PyObject* const module = PyModule_Create(&tiledmm::definition);
#if defined(Py_GIL_DISABLED)
  if (module) PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
  return module;
}
