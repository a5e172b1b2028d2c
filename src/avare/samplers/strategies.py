"""The samplers of this package: a new one is added by its file and a line here.

Each line registers a sampler under its name, and exports it as ``avare.Name`` and ``avare.samplers.Name``.
"""

from avare.samplers.avare import Avare as Avare
from avare.samplers.calibrated import Calibrated as Calibrated
from avare.samplers.optimal import Optimal as Optimal
from avare.samplers.passes import Passes as Passes
from avare.samplers.rivals.mabs import Mabs as Mabs
from avare.samplers.rivals.mixture import Mixture as Mixture
from avare.samplers.rivals.osmd import Osmd as Osmd
from avare.samplers.rivals.safe import Safe as Safe
from avare.samplers.rivals.srg import Srg as Srg
from avare.samplers.rivals.stratified import Stratified as Stratified
from avare.samplers.rivals.vrb import Vrb as Vrb
from avare.samplers.static import Static as Static
from avare.samplers.uniform import Uniform as Uniform
