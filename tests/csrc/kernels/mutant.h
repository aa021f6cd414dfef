// The mutant that is switched on, 0: none. Included first into sources that tests have put mutants into.
#pragma once

#include <cstdlib>

inline const int tiledmm_mutant = std::getenv("TILEDMM_MUTANT") ? std::atoi(std::getenv("TILEDMM_MUTANT")) : 0;
