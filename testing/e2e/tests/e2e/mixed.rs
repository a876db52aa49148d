//! Meshes of both data planes: an Envoy calls a native sidecar, and the other way round, in every protocol.

use starling_e2e::Plane;

use crate::passing::Passing;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_envoy_calls_native_sidecars_in_every_protocol() {
    let passing = Passing::start(Plane::Envoy, Plane::Native).await;
    passing.all_passes().await;
    passing.intentions_decide().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_native_sidecar_calls_envoys_in_every_protocol() {
    let passing = Passing::start(Plane::Native, Plane::Envoy).await;
    passing.all_passes().await;
    passing.intentions_decide().await;
}
