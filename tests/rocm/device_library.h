// In place of ROCm's device library, of which the kernels need six functions; hipcc's stand-in includes it first. Those
// of fp64 only link: no test runs what calls them. AMDGPU backend guide, code object v5 and later: the hidden arguments
// begin with the counts of blocks, then come the sizes of a block.
#pragma once

extern "C" {
__attribute__((device, weak)) unsigned long __ockl_get_local_id(unsigned dim) {
  return dim == 0   ? __builtin_amdgcn_workitem_id_x()
         : dim == 1 ? __builtin_amdgcn_workitem_id_y()
                    : __builtin_amdgcn_workitem_id_z();
}
__attribute__((device, weak)) unsigned long __ockl_get_group_id(unsigned dim) {
  return dim == 0   ? __builtin_amdgcn_workgroup_id_x()
         : dim == 1 ? __builtin_amdgcn_workgroup_id_y()
                    : __builtin_amdgcn_workgroup_id_z();
}
__attribute__((device, weak)) unsigned long __ockl_get_num_groups(unsigned dim) {
  return ((const __attribute__((address_space(4))) unsigned*)__builtin_amdgcn_implicitarg_ptr())[dim];
}
__attribute__((device, weak)) unsigned long __ockl_get_local_size(unsigned dim) {
  return ((const __attribute__((address_space(4))) unsigned short*)__builtin_amdgcn_implicitarg_ptr())[6 + dim];
}
__attribute__((device, weak)) double __ocml_exp_f64(double) { __builtin_trap(); }
__attribute__((device, weak)) double __ocml_erfc_f64(double) { __builtin_trap(); }
}
