# The front tier: calls api, and the common service hey.
service {
  name = "web"
  id   = "web-1"
  port = 9090

  check {
    http     = "http://127.0.0.1:9090/health"
    interval = "2s"
    timeout  = "1s"
  }

  connect {
    sidecar_service {
      proxy {
        upstreams = [
          { destination_name = "api", local_bind_port = 9191 },
          { destination_name = "hey", local_bind_port = 9192 },
        ]
      }
    }
  }
}
