#pragma once

namespace baton {

// One callable of several lambdas, for std::visit: a kind without a lambda does not compile.
template <typename... Lambdas>
struct Overloaded : Lambdas... {
  using Lambdas::operator()...;
};

}  // namespace baton
