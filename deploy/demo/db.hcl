# The back tier.
service {
  name = "db"
  id   = "db-1"
  port = 9092

  check {
    http     = "http://127.0.0.1:9092/health"
    interval = "2s"
    timeout  = "1s"
  }

  connect {
    sidecar_service {}
  }
}
