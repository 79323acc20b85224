"""What the dashboard shows beside the cluster: folders of pipelines, ZooKeeper of MetaQ 1.x."""
