# What everybody calls.
service {
  name = "hey"
  id   = "hey-1"
  port = 9093

  check {
    http     = "http://127.0.0.1:9093/health"
    interval = "2s"
    timeout  = "1s"
  }

  connect {
    sidecar_service {}
  }
}
