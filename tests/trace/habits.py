"""Things that training scripts do, one function each: all of them must work on the planned device."""

from __future__ import annotations

import contextlib
import copy
import io
import threading
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

HABITS: list[Callable[[], None]] = []


def habit(function: Callable[[], None]) -> Callable[[], None]:
    HABITS.append(function)
    return function


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).cuda()


@habit
def ema_deepcopy() -> None:
    m = net()
    e = copy.deepcopy(m)
    assert all(isinstance(p, nn.Parameter) for p in e.parameters()), [type(p) for p in e.parameters()]
    assert len(list(e.parameters())) == 4
    for a, b in zip(e.parameters(), m.parameters(), strict=False):
        a.data.mul_(0.9).add_(b.data, alpha=0.1)
    for p in e.parameters():
        p.requires_grad_(requires_grad=False)
    e(torch.randn(3, 8, device="cuda"))


@habit
def ema_swa() -> None:
    m = net()
    s = torch.optim.swa_utils.AveragedModel(m)
    s.update_parameters(m)
    s(torch.randn(3, 8).cuda())


@habit
def tying() -> None:
    m = nn.Module()
    m.a = nn.Embedding(10, 8)
    m.b = nn.Linear(8, 10, bias=False)
    m.b.weight = m.a.weight
    m.cuda()
    assert m.a.weight is m.b.weight
    m.b(m.a(torch.zeros(2, 3, dtype=torch.long, device="cuda"))).sum().backward()


@habit
def parametr() -> None:
    m = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)).cuda()
    m(torch.randn(2, 8, device="cuda")).sum().backward()
    m = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)).cuda()
    m(torch.randn(2, 8, device="cuda")).sum().backward()
    m = nn.utils.spectral_norm(nn.Linear(8, 8)).cuda()
    m(torch.randn(2, 8, device="cuda")).sum().backward()
    m = nn.utils.weight_norm(nn.Linear(8, 8)).cuda()
    m(torch.randn(2, 8, device="cuda")).sum().backward()


@habit
def state_dicts() -> None:
    m = net()
    sd = m.state_dict()
    m2 = net()
    m2.load_state_dict(sd)
    m3 = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    m3.load_state_dict(sd)
    host = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).state_dict()
    m.load_state_dict(host)
    m.load_state_dict(host, assign=True)
    b = io.BytesIO()
    torch.save(m.state_dict(), b)
    b.seek(0)
    m.load_state_dict(torch.load(b, map_location="cuda"))


@habit
def optims() -> None:
    m = net()
    for kind in (
        torch.optim.SGD,
        torch.optim.Adam,
        torch.optim.AdamW,
        torch.optim.Adadelta,
        torch.optim.Adagrad,
        torch.optim.Adamax,
        torch.optim.ASGD,
        torch.optim.NAdam,
        torch.optim.RAdam,
        torch.optim.RMSprop,
        torch.optim.Rprop,
        torch.optim.Adafactor,
    ):
        for kw in ({}, {"foreach": False}, {"capturable": True}):
            try:
                o = kind(m.parameters(), lr=0.1, **kw)
            except TypeError:
                continue
            m(torch.randn(2, 8, device="cuda")).sum().backward()
            o.step()
            o.step()
            o.zero_grad()
            o.state_dict()
            o.load_state_dict(o.state_dict())
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad):
        o = kind(m.parameters(), lr=0.1, fused=True)
        m(torch.randn(2, 8, device="cuda")).sum().backward()
        o.step()
        o.zero_grad()
    o = torch.optim.LBFGS(m.parameters())

    def c():
        o.zero_grad()
        loss = m(torch.randn(2, 8, device="cuda")).sum()
        loss.backward()
        return loss

    o.step(c)
    if hasattr(torch.optim, "Muon"):
        mm = nn.Linear(8, 8, bias=False).cuda()
        o = torch.optim.Muon(mm.parameters())
        mm(torch.randn(2, 8, device="cuda")).sum().backward()
        o.step()


@habit
def scheds() -> None:
    m = net()
    o = torch.optim.SGD(m.parameters(), 0.1)
    s = torch.optim.lr_scheduler.ReduceLROnPlateau(o)
    loss = m(torch.randn(2, 8, device="cuda")).sum()
    loss.backward()
    o.step()
    s.step(loss)
    s.step(loss.item())


@habit
def jit_script() -> None:
    m = torch.jit.script(nn.Linear(8, 8)).cuda()
    m(torch.randn(2, 8, device="cuda")).sum().backward()


@habit
def jit_trace() -> None:
    m = nn.Linear(8, 8).cuda()
    j = torch.jit.trace(m, torch.randn(2, 8, device="cuda"))
    j(torch.randn(2, 8, device="cuda"))


@habit
def default_device() -> None:
    torch.set_default_device("cuda")
    try:
        x = torch.randn(3)
        assert x.is_cuda
        m = nn.Linear(3, 3)
        m(x).sum().backward()
        torch.tensor([1.0])
        torch.randperm(4)
    finally:
        torch.set_default_device("cpu")


@habit
def default_tensor_type() -> None:
    torch.set_default_tensor_type("torch.cuda.FloatTensor")
    try:
        assert torch.randn(3).is_cuda
    finally:
        torch.set_default_tensor_type("torch.FloatTensor")


@habit
def device_ctx() -> None:
    with torch.device("cuda"):
        assert nn.Linear(3, 3).weight.is_cuda


@habit
def types() -> None:
    x = torch.cuda.FloatTensor(3, 4)
    torch.cuda.LongTensor([1, 2])
    torch.cuda.FloatTensor([1.0, 2.0])
    x.type(torch.cuda.HalfTensor)
    assert x.type() == "torch.cuda.FloatTensor"
    isinstance(x, torch.cuda.FloatTensor)
    x.new(3).zero_()
    x.new_zeros(3)


@habit
def numpy() -> None:
    x = torch.ones(3, device="cuda")
    x.cpu().numpy()
    x.detach().cpu().numpy()
    x.tolist()
    len(x)
    [float(i) for i in x]
    f"{x.mean():.3f}"
    str(x)
    print(x.sum())
    x.sum().item()
    int(x.sum())
    bool((x > 0).all())


@habit
def numpy_err() -> None:
    with contextlib.suppress(TypeError):
        torch.ones(3, device="cuda").numpy()


@habit
def index() -> None:
    x = torch.randn(4, 5, device="cuda")
    x[x > 0]
    x[x > 0] = 0
    x[torch.arange(4), torch.zeros(4, dtype=torch.long)]
    x[torch.tensor([0, 1])]
    x[:, [0, 1]]
    x.masked_fill(x > 0, 1.0)
    x.index_select(0, torch.tensor([0, 1], device="cuda"))
    torch.where(x > 0)
    x.nonzero(as_tuple=True)
    x.topk(2)
    x.sort()
    x.unique()
    torch.bincount(torch.tensor([1, 2], device="cuda"))


@habit
def threads() -> None:
    e = []

    def w():
        try:
            torch.ones(3, device="cuda").sum()
            torch.ones(3).cuda(non_blocking=True)
        except BaseException as x:
            e.append(x)

    th = threading.Thread(target=w)
    th.start()
    th.join()
    if e:
        raise e[0]


@habit
def graphs() -> None:
    g = torch.cuda.CUDAGraph()
    s = torch.cuda.Stream()
    s.wait_stream(torch.cuda.current_stream())
    m = net()
    with torch.cuda.stream(s):
        m(torch.randn(2, 8, device="cuda"))
    with torch.cuda.graph(g):
        m(torch.randn(2, 8, device="cuda"))
    g.replay()
    mm = torch.cuda.make_graphed_callables(net(), (torch.randn(2, 8, device="cuda"),))
    mm(torch.randn(2, 8, device="cuda"))


@habit
def compile_() -> None:
    m = torch.compile(net(), mode="max-autotune")
    m(torch.randn(2, 8, device="cuda")).sum().backward()

    @torch.compile
    def f(x):
        return x + 1

    f(torch.ones(2, device="cuda"))

    @torch.compile(fullgraph=True)
    def g(x):
        return x + 1

    g(torch.ones(2, device="cuda"))


@habit
def ckpt() -> None:
    from torch.utils.checkpoint import checkpoint, checkpoint_sequential

    m = net()
    x = torch.randn(2, 8, device="cuda", requires_grad=True)
    checkpoint(m, x, use_reentrant=False).sum().backward()
    checkpoint(m, x, use_reentrant=True).sum().backward()
    checkpoint_sequential(m, 2, x, use_reentrant=False).sum().backward()


@habit
def amp_old() -> None:
    from torch.cuda.amp import GradScaler, autocast

    m = net()
    o = torch.optim.SGD(m.parameters(), 0.1)
    s = GradScaler()
    with autocast():
        loss = m(torch.randn(2, 8, device="cuda")).sum()
    assert loss.dtype in (torch.float16, torch.float32)
    s.scale(loss).backward()
    s.unscale_(o)
    nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    nn.utils.clip_grad_value_(m.parameters(), 1.0)
    s.step(o)
    s.update()
    s.get_scale()
    s.state_dict()


@habit
def functional_grad() -> None:
    x = torch.randn(2, 8, device="cuda", requires_grad=True)
    m = net()
    (g,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
    g.norm(2, 1).sub(1).pow(2).mean().backward()


@habit
def func_api() -> None:
    from torch.func import functional_call, grad, vmap

    m = net()
    p = dict(m.named_parameters())
    functional_call(m, p, (torch.randn(2, 8, device="cuda"),))

    def f(p, x):
        return functional_call(m, p, (x,)).sum()

    grad(f)({k: v.detach() for k, v in p.items()}, torch.randn(2, 8, device="cuda"))
    vmap(grad(f), in_dims=(None, 0))({k: v.detach() for k, v in p.items()}, torch.randn(4, 2, 8, device="cuda"))


@habit
def rnn_pack() -> None:
    lstm = nn.LSTM(8, 8, 2, batch_first=True, bidirectional=True).cuda()
    x = torch.randn(3, 5, 8, device="cuda")
    p = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 4, 2]), batch_first=True)
    y, _ = lstm(p)
    y, _ = nn.utils.rnn.pad_packed_sequence(y, batch_first=True)
    y.sum().backward()
    g = nn.GRUCell(8, 8).cuda()
    g(torch.randn(3, 8, device="cuda")).sum().backward()
    c = nn.LSTMCell(8, 8).cuda()
    c(torch.randn(3, 8, device="cuda"))[0].sum().backward()


@habit
def mha() -> None:
    m = nn.MultiheadAttention(8, 2, batch_first=True).cuda()
    x = torch.randn(2, 4, 8, device="cuda")
    m(x, x, x, need_weights=False)[0].sum().backward()
    m.eval()
    with torch.no_grad():
        m(x, x, x)
    e = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).cuda().eval()
    with torch.no_grad():
        e(x, src_key_padding_mask=torch.zeros(2, 4, dtype=torch.bool, device="cuda"))


@habit
def losses() -> None:
    x = torch.randn(4, 5, device="cuda", requires_grad=True)
    y = torch.randint(5, (4,), device="cuda")
    for L in (
        F.cross_entropy(x, y),
        F.nll_loss(x.log_softmax(1), y),
        F.multi_margin_loss(x, y),
        F.binary_cross_entropy_with_logits(x, torch.ones_like(x)),
        F.binary_cross_entropy(x.sigmoid(), torch.ones_like(x)),
        F.mse_loss(x, torch.zeros_like(x)),
        F.smooth_l1_loss(x, torch.zeros_like(x)),
        F.kl_div(x.log_softmax(1), x.softmax(1).detach(), reduction="batchmean"),
        F.triplet_margin_loss(x, x + 1, x - 1),
        F.cosine_embedding_loss(x, x, torch.ones(4, device="cuda")),
        F.ctc_loss(
            torch.randn(50, 4, 5, device="cuda", requires_grad=True).log_softmax(2),
            torch.randint(1, 5, (4, 10), device="cuda"),
            torch.full((4,), 50),
            torch.full((4,), 10),
        ),
    ):
        L.backward()


@habit
def vision_ops() -> None:
    x = torch.randn(2, 3, 16, 16, device="cuda", requires_grad=True)
    F.interpolate(x, scale_factor=2, mode="bilinear").sum().backward()
    F.grid_sample(x, torch.zeros(2, 4, 4, 2, device="cuda")).sum().backward()
    F.unfold(x, 3).sum().backward()
    nn.PixelShuffle(1)(x)
    F.adaptive_avg_pool2d(x, 1).sum().backward()
    nn.ConvTranspose2d(3, 4, 4, 2, 1).cuda()(x).sum().backward()
    torch.fft.rfft2(x).abs().sum().backward()
    torch.stft(
        x.reshape(2, -1), 64, window=torch.hann_window(64, device="cuda"), return_complex=True
    ).abs().sum().backward()


@habit
def linalg() -> None:
    x = torch.randn(4, 4, device="cuda", requires_grad=True)
    torch.linalg.inv(x).sum().backward()
    torch.linalg.svd(x)
    torch.linalg.qr(x)
    torch.linalg.cholesky(x @ x.T + torch.eye(4, device="cuda"))
    torch.einsum("ij,jk->ik", x, x).sum().backward()
    torch.linalg.norm(x).backward()
    torch.det(x)
    torch.linalg.eigh(x)


@habit
def sparse() -> None:
    i = torch.tensor([[0, 1], [1, 0]])
    a = torch.sparse_coo_tensor(i, torch.ones(2), (2, 2)).cuda()
    torch.sparse.mm(a, torch.randn(2, 3, device="cuda", requires_grad=True)).sum().backward()
    e = nn.Embedding(10, 4, sparse=True).cuda()
    o = torch.optim.SparseAdam(e.parameters())
    e(torch.tensor([1, 2], device="cuda")).sum().backward()
    o.step()


@habit
def mem() -> None:
    torch.cuda.memory_allocated()
    torch.cuda.max_memory_allocated() / 1e9
    torch.cuda.memory_stats()["allocated_bytes.all.current"]
    torch.cuda.mem_get_info()
    assert torch.cuda.get_device_properties(0).total_memory
    torch.cuda.memory_summary()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.get_device_capability()
    torch.cuda.device(0)
    torch.backends.cudnn.version()
    torch.cuda.nvtx.range_push("a")
    torch.cuda.memory._record_memory_history()
    torch.cuda.amp.GradScaler()


@habit
def events() -> None:
    s = torch.cuda.Event(enable_timing=True)
    e = torch.cuda.Event(enable_timing=True)
    s.record()
    e.record()
    torch.cuda.synchronize()
    s.elapsed_time(e)
    torch.cuda.current_stream().synchronize()
    torch.cuda.default_stream()


@habit
def profiler() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]):
        net()(torch.randn(2, 8, device="cuda"))
    with torch.profiler.record_function("x"):
        pass


@habit
def rng() -> None:
    g = torch.Generator(device="cuda")
    g.manual_seed(1)
    torch.randn(3, device="cuda", generator=g)
    torch.cuda.manual_seed_all(3)
    s = torch.cuda.get_rng_state()
    torch.cuda.set_rng_state(s)
    with torch.random.fork_rng():
        torch.randn(2, device="cuda")
    torch.manual_seed(0)


@habit
def hooks() -> None:
    m = net()
    m[0].register_forward_hook(lambda m, i, o: None)
    m[0].register_full_backward_hook(lambda m, gi, go: None)
    p = next(m.parameters())
    p.register_hook(lambda g: g * 2)
    p.register_post_accumulate_grad_hook(lambda p: None)
    m(torch.randn(2, 8, device="cuda")).sum().backward()


@habit
def params_ops() -> None:
    m = net()
    nn.utils.parameters_to_vector(m.parameters())
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(m.parameters()), m.parameters())
    sum(p.numel() for p in m.parameters())
    assert next(m.parameters()).device.type == "cuda"
    assert next(m.parameters()).is_cuda
    m.half()
    m.float()
    m.cpu()
    m.cuda()
    m.to("cuda:0", torch.bfloat16)
    m.to(memory_format=torch.channels_last)


@habit
def dataptr() -> None:
    x = torch.ones(3, device="cuda")
    x.data_ptr()
    x.untyped_storage().nbytes()
    x.is_contiguous()
    x.element_size()


@habit
def custom_fn() -> None:
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clamp(min=0)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * (x > 0)

    x = torch.randn(3, device="cuda", requires_grad=True)
    Fn.apply(x).sum().backward()
    assert x.grad is not None


@habit
def inference_mode() -> None:
    kept = torch.randn(4, device="cuda")
    for _ in range(3):
        with torch.inference_mode():
            kept.unsqueeze(0).expand(2, 4).clone().unsqueeze(0).add_(1)
        kept.unsqueeze(0)
    m = net()
    with torch.inference_mode():
        y = m(torch.randn(2, 8, device="cuda"))
        y.argmax(1).cpu()
    m(torch.randn(2, 8, device="cuda")).sum().backward()


@habit
def lazy() -> None:
    m = nn.LazyLinear(4).cuda()
    m(torch.randn(2, 8, device="cuda")).sum().backward()


@habit
def buffers() -> None:
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.register_buffer("q", torch.zeros(1, dtype=torch.long))
            s.register_buffer("queue", F.normalize(torch.randn(4, 8), dim=0))

        def forward(s, x):
            p = int(s.q)
            s.queue[:, p : p + 2] = x.T[:4]
            s.q[0] = (p + 2) % 8
            return x

    m = M().cuda()
    m(torch.randn(2, 8, device="cuda"))
    m(torch.randn(2, 8, device="cuda"))
    assert int(m.q) == 4


@habit
def fp8() -> None:
    torch.randn(4, 4, device="cuda").to(torch.float8_e4m3fn)


@habit
def flex() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q = torch.randn(1, 2, 128, 16, device="cuda", requires_grad=True)
    b = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="cuda")
    flex_attention(q, q, q, block_mask=b).sum().backward()


@habit
def sdp_ctx() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.randn(1, 2, 128, 16, device="cuda", dtype=torch.bfloat16)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        F.scaled_dot_product_attention(q, q, q)
    with torch.backends.cuda.sdp_kernel(enable_flash=True):
        F.scaled_dot_product_attention(q, q, q)
