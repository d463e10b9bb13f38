#pragma once

#include "common/checkpoint/json_fields.h"

namespace baton {

// Judges the fields of a config.json that no one has read yet. Accepted: null; fields that do not
// change what a forward pass computes; fields of other model families at the value that means
// "off". Anything else is Unimplemented, naming the field, its value and what is allowed: a field
// that Baton does not know may change the answer.
void RefuseUnsupportedFields(JsonFields& config);

}  // namespace baton
