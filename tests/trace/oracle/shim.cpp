// A CUDA device that exists for PyTorch's C++ and does nothing: the oracle of the traces in test_oracle.py.
//
// Loaded before `import torch`, it registers a device guard and hooks for CUDA in a CPU-only build, so that PyTorch's own
// dispatch (autocast lists, dropout, foreach, autograd) treats fake tensors as CUDA tensors.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

constexpr c10::DeviceType kDevice = c10::DeviceType::CUDA;

c10::Device device() { return c10::Device(kDevice, 0); }
c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, device()); }

struct Guard final : c10::impl::NoOpDeviceGuardImpl<kDevice> {
  c10::Device exchangeDevice(c10::Device) const override { return device(); }
  c10::Device getDevice() const override { return device(); }
  c10::Stream getStream(c10::Device) const noexcept override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream(); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};

c10::impl::DeviceGuardImplRegistrar guard(kDevice, new Guard());

}  // namespace

struct Hooks final : at::CUDAHooksInterface {
  Hooks() = default;
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex current_device() const override { return 0; }
};

namespace at {
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, Hooks)
}
