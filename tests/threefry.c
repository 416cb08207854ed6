/* Threefry 2x32 with 20 rounds (Salmon et al. 2011) as one call of a compiled program.
 *
 * Arguments: two words of the key and two of the counter, all of one shape. Results: two words.
 */
#include <stdint.h>

#include "xla/ffi/api/c_api.h"

static const int ROTATIONS[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};

static const uint32_t *argument(const XLA_FFI_CallFrame *frame, int at) {
  return ((XLA_FFI_Buffer *)frame->args.args[at])->data;
}

static uint32_t *result(const XLA_FFI_CallFrame *frame, int at) {
  return ((XLA_FFI_Buffer *)frame->rets.rets[at])->data;
}

static void describe(XLA_FFI_Metadata *metadata) {
  metadata->api_version.major_version = XLA_FFI_API_MAJOR;
  metadata->api_version.minor_version = XLA_FFI_API_MINOR;
}

XLA_FFI_Error *threefry2x32(XLA_FFI_CallFrame *frame) {
  XLA_FFI_Extension_Base *asked = frame->extension_start;
  if (asked != NULL && asked->type == XLA_FFI_Extension_Metadata) {
    describe(((XLA_FFI_Metadata_Extension *)asked)->metadata);
    return NULL;
  }

  const uint32_t *key0 = argument(frame, 0), *key1 = argument(frame, 1);
  const uint32_t *count0 = argument(frame, 2), *count1 = argument(frame, 3);
  uint32_t *out0 = result(frame, 0), *out1 = result(frame, 1);
  const XLA_FFI_Buffer *shape = frame->rets.rets[0];
  int64_t size = 1;
  for (int64_t axis = 0; axis < shape->rank; axis++) size *= shape->dims[axis];

  for (int64_t at = 0; at < size; at++) {
    const uint32_t keys[3] = {key0[at], key1[at], key0[at] ^ key1[at] ^ 0x1BD11BDAu};
    uint32_t x = count0[at] + keys[0], y = count1[at] + keys[1];
    for (uint32_t group = 0; group < 5; group++) {
      for (int step = 0; step < 4; step++) {
        const int by = ROTATIONS[group % 2][step];
        x += y;
        y = ((y << by) | (y >> (32 - by))) ^ x;
      }
      x += keys[(group + 1) % 3];
      y += keys[(group + 2) % 3] + group + 1;
    }
    out0[at] = x;
    out1[at] = y;
  }
  return NULL;
}
