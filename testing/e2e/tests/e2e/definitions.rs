//! Services that are defined in files, as Consul's users have them, carry traffic.

use std::path::Path;

use starling_e2e::{App, Mesh, MeshOptions, Sidecar, Xds, eventually, free_port, http};
use tempfile::TempDir;

/// What a file says: web calls api, and both have a sidecar.
fn web_hcl(port: u16, public_port: u16, upstream_port: u16) -> String {
    format!(
        r#"
        service {{
          name = "web"
          id   = "web-1"
          port = {port}
          connect {{
            sidecar_service {{
              port = {public_port}
              proxy {{
                upstreams = [{{ destination_name = "api", local_bind_port = {upstream_port} }}]
              }}
            }}
          }}
        }}
        "#
    )
}

fn api_hcl(port: u16, public_port: u16) -> String {
    format!(
        r#"
        services {{
          name = "api"
          id   = "api-1"
          port = {port}
          check {{
            name     = "alive"
            http     = "http://127.0.0.1:{port}/health"
            interval = "100ms"
          }}
          connect {{ sidecar_service {{ port = {public_port} }} }}
        }}
        "#
    )
}

const CONFIGURATION: &str = r#"
    config_entries {
      bootstrap = [
        { kind = "service-defaults", name = "api", protocol = "http" },
        {
          kind = "service-intentions"
          name = "api"
          sources = [{
            name = "web"
            permissions = [{ action = "deny", http = { path_prefix = "/admin" } }]
          }]
        },
      ]
    }
"#;

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("a written file");
    path.display().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stands_in_files_carries_traffic() {
    let files = TempDir::with_prefix("starling-e2e-config-").expect("a temporary directory");
    let (api_port, api_public, web_port, web_public, upstream) =
        (free_port(), free_port(), free_port(), free_port(), free_port());
    write(files.path(), "api.hcl", &api_hcl(api_port, api_public));
    write(files.path(), "entries.hcl", CONFIGURATION);
    write(files.path(), "README.txt", "not a definition");
    let options = MeshOptions { config_dir: Some(files.path().to_owned()), ..MeshOptions::default() };
    let mut mesh = Mesh::start(options).await;
    let elsewhere = TempDir::with_prefix("starling-e2e-web-").expect("a temporary directory");
    let web = write(elsewhere.path(), "web.hcl", &web_hcl(web_port, web_public, upstream));
    let _ = mesh.cli(&["services", "register", &web]).await.success();

    let uri = format!("http://127.0.0.1:{upstream}");
    let (web_ports, api_ports) = ([web_public, upstream], [api_public]);
    let environment = [("UPSTREAM_URIS", uri.as_str())];
    let (web, _api, _web_sidecar, _api_sidecar) = tokio::join!(
        App::start("web", web_port, &environment),
        App::start("api", api_port, &[]),
        Sidecar::start(&mesh, "web-1", &web_ports, Xds::Incremental),
        Sidecar::start(&mesh, "api-1", &api_ports, Xds::Incremental),
    );
    let answers = async |path: &str, code: u16| {
        eventually(&format!("api answers {code} to {path}"), async || {
            let answer = http::get(&web.authority(), path).await?.json();
            let from_api = answer["upstream_calls"][&uri]["code"].as_u64();
            anyhow::ensure!(from_api == Some(u64::from(code)), "{answer:#}");
            Ok(())
        })
        .await;
    };
    answers("/shop", 200).await;
    answers("/admin", 403).await;

    // Started anew, it reads the files again, and finds what it was told besides in its data.
    let before = mesh.get("/v1/catalog/services").await.success().json();
    mesh.kill9();
    mesh.restart().await;
    assert_eq!(mesh.get("/v1/catalog/services").await.success().json(), before);
    answers("/shop", 200).await;
    answers("/admin", 403).await;
    let _ = mesh.cli(&["services", "deregister", "-id", "api-1"]).await.success();
    eventually("api is gone", async || {
        let answer = http::get(&format!("127.0.0.1:{upstream}"), "/shop").await?;
        anyhow::ensure!(answer.status == 503, "{}", answer.status);
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_goes_with_its_file() {
    let files = TempDir::with_prefix("starling-e2e-config-").expect("a temporary directory");
    let define = |name: &str| {
        let text = format!("service {{\n  name = \"{name}\"\n  port = {}\n}}\n", free_port());
        write(files.path(), &format!("{name}.hcl"), &text)
    };
    let (old, _) = (define("old"), define("stays"));
    let options = MeshOptions { config_dir: Some(files.path().to_owned()), ..MeshOptions::default() };
    let mut mesh = Mesh::start(options).await;
    mesh.register(&serde_json::json!({"Name": "called", "Port": free_port()})).await;
    mesh.kill9();
    std::fs::remove_file(old).expect("removable");
    mesh.restart().await;
    for target in ["/v1/agent/services", "/v1/catalog/services"] {
        let services = mesh.get(target).await.success().json();
        assert!(services["old"].is_null(), "{target}: {services}");
        assert!(!services["stays"].is_null() && !services["called"].is_null(), "{target}: {services}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_file_or_too_large_is_refused_and_not_waited_for() {
    let files = TempDir::with_prefix("starling-e2e-config-").expect("a temporary directory");
    let options = MeshOptions { config_dir: Some(files.path().to_owned()), ..MeshOptions::default() };
    let mut mesh = Mesh::start(options).await;
    mesh.kill9();
    let pipe = files.path().join("pipe.hcl");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR).expect("a pipe");
    let said = mesh.restart_refused("a definition is a pipe").await;
    assert!(said.contains("pipe.hcl") && said.contains("not a regular file"), "{said}");
    std::fs::remove_file(&pipe).expect("removable");
    // Has no end that could be read in time, and takes no room on the disk.
    let endless = std::fs::File::create(files.path().join("endless.hcl")).expect("a file");
    endless.set_len(1 << 40).expect("a sparse file");
    let said = mesh.restart_refused("a definition is too large").await;
    assert!(said.contains("endless.hcl") && said.contains("4194304"), "{said}");
}
