// Texts of the C interface.
#pragma once

#include <cstddef>
#include <string>

namespace tiledmm {

// What write(text, capacity) says, which returns the length of the whole and writes at most capacity of it.
template <class Write>
std::string whole_text(const Write& write) {
  std::string text(1 << 14, '\0');
  const size_t length = write(text.data(), text.size());
  if (length > text.size()) {
    text.resize(length);
    write(text.data(), text.size());
  }
  text.resize(length);
  return text;
}

}  // namespace tiledmm
