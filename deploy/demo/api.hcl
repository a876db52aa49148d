# The middle tier: calls db, and the common service hey.
service {
  name = "api"
  id   = "api-1"
  port = 9091

  check {
    http     = "http://127.0.0.1:9091/health"
    interval = "2s"
    timeout  = "1s"
  }

  connect {
    sidecar_service {
      proxy {
        upstreams = [
          { destination_name = "db", local_bind_port = 9193 },
          { destination_name = "hey", local_bind_port = 9194 },
        ]
      }
    }
  }
}
