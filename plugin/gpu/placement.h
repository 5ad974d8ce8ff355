// Which layers' experts go to a device while a model loads.
//
// llama.cpp asks for one weight after another and says nothing of those to come, so a layer is decided at
// its first weight, whole: what its other experts need follows from their types, which are known if the
// file was announced, and from the shape they share.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "../backend/model.h"

namespace octet {

class Placement {
  public:
    // Whether the layer of expert weight `name` (`bytes` of them, of dimensions ne) has a place where `free`
    // bytes are. Asked again, the answer stays as it was. `title` and `next` are for the one line that says what
    // found none: the device, and what becomes of the rest.
    bool takes(const std::shared_ptr<const Model> & model, const std::string & name, const int64_t ne[4], size_t bytes,
               uint64_t free, const std::string & title, const std::string & next);

    // The weights that were promised a place are in it now.
    void filled();

  private:
    std::mutex mutex_;
    std::weak_ptr<const Model> model_;
    std::map<std::string, bool> layers_;  // of the load that is going on
    uint64_t promised_ = 0;
    bool told_ = false;
};

}  // namespace octet
