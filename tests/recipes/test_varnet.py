"""The variational network equals fastMRI's; properties of its parts."""

import pytest
import torch
from support.small_volumes import random_kspace

from dualavg_bench.data.fastmri import offset_mask, root_sum_of_squares
from dualavg_bench.models.varnet import Cascade, NormUNet, UNet, VarNet
from dualavg_bench.recipes import fastmri as experiment

pytestmark = pytest.mark.usefixtures("one_thread")


def fill(model):
    """Set every weight to the sine of its number, so that the reference needs no file."""
    first = 0
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("consistency"):
                p.fill_(0.9)
            else:
                numbers = torch.arange(first, first + p.numel(), dtype=torch.float64)
                p.copy_(0.3 * numbers.sin().view_as(p))
                first += p.numel()
    return model


def test_the_network_equals_fastmris():
    model = fill(VarNet(2, chans=4, pools=2, sens_chans=2, sens_pools=3, centre=4).double())
    n = torch.arange(2 * 3 * 20 * 26, dtype=torch.float64)
    kspace = torch.complex((n * n / 50).cos(), (n / 7).sin()).view(2, 3, 20, 26)
    mask = torch.stack([offset_mask(26, 4, offset) for offset in (1, -1)])
    images = model(torch.where(mask[:, None, None], kspace, 0), mask)
    assert images.shape == (2, 20, 26)
    # The output of fastmri 0.3.0 for the same weights, k-space and mask, in double precision.
    theirs = [
        *(1.243738609, 0.703081136, 0.412631021, 0.99368432, 0.738175092, 0.601972401),
        *(2.317967707, 1.272648971, 0.81597725, 1.265685326, 0.751875361, 1.060870011),
        *(0.82694822, 0.562860732, 0.823171915, 2.235539167, 1.314841654, 2.16105719),
    ]
    assert images[:, ::9, ::11].flatten().tolist() == pytest.approx(theirs, abs=1e-8)
    assert images.mean().item() == pytest.approx(0.9435139482155384, abs=1e-12)


def test_the_network_of_the_paper_has_30_million_parameters():
    recipe = experiment.recipe("paper")
    with torch.device("meta"):
        model = recipe.model()
        mask = torch.ones(1, 368, dtype=torch.bool)
        assert model(torch.zeros(1, 15, 640, 368, dtype=torch.complex64), mask).shape == (1, 640, 368)
    assert len(model.cascades) == 12
    assert sum(p.numel() for p in model.parameters()) == 29_936_966  # fastmri 0.3.0's VarNet(12)


def test_data_consistency_restores_the_measured_lines():
    cascade = Cascade(4, 2).double()
    cascade.refine = NoCorrection()
    measured, kspace, maps = (random_kspace(1, 3, 16, 20, seed=i) for i in range(3))
    mask = offset_mask(20, 4, 1)
    result = cascade(kspace, measured, mask, maps)
    assert torch.allclose(result[..., mask], measured[..., mask], atol=1e-12)
    assert torch.equal(result[..., ~mask], kspace[..., ~mask])
    torch.nn.init.constant_(cascade.consistency, 0.25)
    result = cascade(kspace, measured, mask, maps)
    assert torch.allclose(result[..., mask], (0.75 * kspace + 0.25 * measured)[..., mask], atol=1e-12)


class NoCorrection(torch.nn.Module):
    def forward(self, image):
        return torch.zeros_like(image)


def test_images_scale_with_kspace():
    # fastMRI's values are about 1e-5. Instance norm adds a constant, but its input is normalized.
    model = fill(VarNet(2, chans=4, pools=2, sens_chans=2, sens_pools=2, centre=4).double())
    mask = offset_mask(24, 4, 1)[None]
    kspace = torch.where(mask[:, None, None], random_kspace(1, 2, 18, 24), 0)
    assert torch.allclose(model(1e-5 * kspace, mask), 1e-5 * model(kspace, mask), rtol=1e-9)


def test_slices_of_a_batch_do_not_affect_each_other():
    model = fill(VarNet(2, chans=4, pools=2, sens_chans=2, sens_pools=2, centre=4).double())
    mask = torch.stack([offset_mask(24, 4, offset) for offset in (1, -1)])
    kspace = torch.where(mask[:, None, None], random_kspace(2, 2, 18, 24), 0)
    one_by_one = torch.cat([model(kspace[i : i + 1], mask[i : i + 1]) for i in range(2)])
    assert torch.allclose(model(kspace, mask), one_by_one, rtol=1e-9)


def test_sensitivities_depend_on_the_middle_alone_and_have_norm_one():
    model = fill(VarNet(1, chans=4, pools=2, sens_chans=2, sens_pools=2, centre=4).double())
    kspace = random_kspace(1, 3, 18, 24)
    maps = model.sensitivities(kspace)
    changed = kspace.clone()
    changed[..., :10] = changed[..., 14:] = 0
    assert torch.equal(model.sensitivities(changed), maps)
    assert torch.allclose(root_sum_of_squares(maps), torch.ones(1, 18, 24, dtype=torch.float64))
    changed[..., 10] = 0
    assert not torch.allclose(model.sensitivities(changed), maps)


def test_padding_does_not_change_the_shape():
    net = fill(NormUNet(4, 3).double())
    for rows, columns in ((16, 16), (17, 31), (33, 20)):
        assert net(random_kspace(2, 1, rows, columns)).shape == (2, 1, rows, columns)


@pytest.mark.parametrize("pools", [0, 5])
def test_pools_beyond_the_padding_are_refused(pools):
    with pytest.raises(ValueError, match="pools must be 1 to 4"):
        UNet(2, 2, 4, pools)
